-- One question about one account, answered atomically: reserve, settle, show or adjust.
-- The same machine as controlplane/policy/ledger.py, where the words are explained.
--
-- KEYS (one hash slot by the tag {tenant|model:version}):
--   1 counters  hash: WINDOW:u used, WINDOW:r reserved, WINDOW:g granted, WINDOW:e end (Unix s); WINDOW = PERIOD/DATE
--   2 leases    sorted set of reservations in flight, ATTEMPT|TOKENS|WINDOW,WINDOW by expiry
--   3 request   hash of one request id: ATTEMPT -> its lease until it is settled; = the attempts settled last;
--               ! number refused; + number settled without a reservation
-- ARGV[1]: the question as JSON. Every key gets its expiry in the call that makes it.
-- Answer, one text: STATUS|NOW, then |WINDOW|START|END|USED|RESERVED|GRANTED for each quota.
local COUNTERS, LEASES, REQUEST = KEYS[1], KEYS[2], KEYS[3]
local SWEPT_AT_ONCE = 500
local SETTLED_KEPT = 16
local ask = cjson.decode(ARGV[1])
local clock = redis.call("TIME")
local now = ask.now or tonumber(clock[1]) + tonumber(clock[2]) / 1000000 -- given only by simulations

local function text(number)
  return string.format("%.0f", number)
end

local function count(window, kind)
  return tonumber(redis.call("HGET", COUNTERS, window .. ":" .. kind) or "0")
end

-- Windows that are gone are not brought back; no counter falls below nothing (but a grant may).
local function add(window, kind, tokens)
  if redis.call("HEXISTS", COUNTERS, window .. ":e") == 1 then
    local sum = count(window, kind) + tokens
    if kind ~= "g" and sum < 0 then sum = 0 end
    redis.call("HSET", COUNTERS, window .. ":" .. kind, text(sum))
  end
end

-- A window's first use: it is noted, the long past forgotten, and the expiry moved behind the last window.
local function open(window, end_s)
  if redis.call("HSETNX", COUNTERS, window .. ":e", text(end_s)) == 0 then return end
  local last = end_s
  local all = redis.call("HGETALL", COUNTERS)
  for i = 1, #all, 2 do
    local name = string.match(all[i], "^(.*):e$")
    if name then
      local ended = tonumber(all[i + 1])
      if ended > last then last = ended end
      if ended < now - ask.keep then
        redis.call("HDEL", COUNTERS, name .. ":e", name .. ":u", name .. ":r", name .. ":g")
      end
    end
  end
  redis.call("EXPIRE", COUNTERS, math.ceil(last + ask.keep - now))
end

-- The window of each quota that the server's own clock is in; nil when the asker's clock is too far off.
local function windows_of_now()
  local chosen = {}
  for i, quota in ipairs(ask.quotas) do
    for _, window in ipairs(quota.windows) do
      if window[2] <= now and now < window[3] then
        chosen[i] = { name = quota.period .. "/" .. window[1], start_s = window[2], end_s = window[3] }
      end
    end
    if not chosen[i] then return nil end
  end
  return chosen
end

local function parts(lease)
  local tokens, names = string.match(lease, "^[^|]*|([^|]*)|(.*)$")
  local windows = {}
  for name in string.gmatch(names, "[^,]+") do windows[#windows + 1] = name end
  return tonumber(tokens), windows
end

local function charge(windows, tokens)
  for _, window in ipairs(windows) do add(window, "u", tokens) end
end

-- Out of what is reserved, `tokens` (or as many as were reserved) into what was used.
local function release(lease, tokens)
  local reserved, windows = parts(lease)
  for _, window in ipairs(windows) do add(window, "r", -reserved) end
  charge(windows, tokens or reserved)
end

local function sweep()
  local expired = redis.call("ZRANGEBYSCORE", LEASES, "-inf", now, "LIMIT", 0, SWEPT_AT_ONCE)
  for _, lease in ipairs(expired) do
    redis.call("ZREM", LEASES, lease)
    release(lease)
  end
end

local function remember(seconds)
  if redis.call("TTL", REQUEST) < seconds then redis.call("EXPIRE", REQUEST, math.ceil(seconds)) end
end

local function answer(status, current)
  local reply = { status, string.format("%.6f", now) }
  for _, w in ipairs(current) do
    local counts = redis.call("HMGET", COUNTERS, w.name .. ":u", w.name .. ":r", w.name .. ":g")
    reply[#reply + 1] = table.concat({
      w.name, text(w.start_s), text(w.end_s), counts[1] or "0", counts[2] or "0", counts[3] or "0",
    }, "|")
  end
  return table.concat(reply, "|")
end

local function fits(current)
  local need = math.max(1, ask.tokens)
  for i, w in ipairs(current) do
    local limit = ask.quotas[i].limit + count(w.name, "g")
    if count(w.name, "u") + count(w.name, "r") + need > limit then return false end
  end
  return true
end

local function lease_out(current)
  local names = {}
  for i, w in ipairs(current) do
    names[i] = w.name
    add(w.name, "r", ask.tokens)
  end
  local lease = ask.attempt .. "|" .. text(ask.tokens) .. "|" .. table.concat(names, ",")
  redis.call("ZADD", LEASES, now + ask.lease, lease)
  redis.call("EXPIRE", LEASES, redis.call("TTL", COUNTERS))
  redis.call("HSET", REQUEST, ask.attempt, lease)
  remember(2 * ask.lease)
end

local function settled_attempts()
  return redis.call("HGET", REQUEST, "=") or ","
end

local function note_settled(attempt)
  local kept = settled_attempts() .. attempt .. ","
  local _, attempts = string.gsub(kept, ",", "")
  if attempts - 1 > SETTLED_KEPT then kept = string.gsub(kept, "^,[^,]*", "", 1) end
  redis.call("HDEL", REQUEST, attempt)
  redis.call("HSET", REQUEST, "=", kept)
end

local function reserve(current)
  local is_settled = string.find(settled_attempts(), "," .. ask.attempt .. ",", 1, true)
  if is_settled or redis.call("HEXISTS", REQUEST, ask.attempt) == 1 then return "admitted" end
  if ask.transfer and tonumber(redis.call("HGET", REQUEST, "+") or "0") > 0 then
    redis.call("HINCRBY", REQUEST, "+", -1)
    note_settled(ask.attempt)
    return "admitted"
  end
  local is_room = fits(current)
  if is_room or ask.forced then
    lease_out(current)
  else
    redis.call("HINCRBY", REQUEST, "!", 1)
    remember(ask.refused_keep)
  end
  return is_room and "admitted" or "refused"
end

-- The lease of the request that expires first among those not settled, its attempt, and how many there are.
local function oldest()
  local found, attempt, expiry
  local leases = 0
  local all = redis.call("HGETALL", REQUEST)
  for i = 1, #all, 2 do
    if #all[i] > 1 then
      leases = leases + 1
      local score = tonumber(redis.call("ZSCORE", LEASES, all[i + 1]) or "0")
      if not found or score < expiry then found, attempt, expiry = all[i + 1], all[i], score end
    end
  end
  return found, attempt, leases
end

local function charge_unreserved(current)
  local windows = {}
  for i, w in ipairs(current) do
    local named = ask.into and ask.into[ask.quotas[i].period]
    windows[i] = named and (ask.quotas[i].period .. "/" .. named[1]) or w.name
    if named then open(windows[i], named[3]) end
  end
  charge(windows, ask.tokens)
  redis.call("HINCRBY", REQUEST, "+", 1)
  remember(2 * ask.lease)
end

local function settle(current)
  if redis.call("EXISTS", REQUEST) == 0 then
    charge_unreserved(current)
    return "unreserved"
  end
  local lease, attempt, leases = oldest()
  if lease then
    note_settled(attempt)
    if leases == 1 then redis.call("EXPIRE", REQUEST, math.ceil(ask.settled_keep)) end
    if redis.call("ZREM", LEASES, lease) == 1 then
      release(lease, ask.tokens)
      return "settled"
    end
    local reserved, windows = parts(lease)
    charge(windows, ask.tokens - reserved)
    return "late"
  end
  if tonumber(redis.call("HGET", REQUEST, "!") or "0") > 0 then
    redis.call("HINCRBY", REQUEST, "!", -1)
    return "refused"
  end
  return "duplicate"
end

local function adjust(current)
  for i, w in ipairs(current) do
    if ask.quotas[i].period == ask.period then
      if ask.grant then add(w.name, "g", ask.grant) else add(w.name, "u", -count(w.name, "u")) end
    end
  end
  return "adjusted"
end

if ask.deadline and now > ask.deadline then return answer("late_question", {}) end
local current = windows_of_now()
if not current then return answer("no_window", {}) end
for _, w in ipairs(current) do open(w.name, w.end_s) end
sweep()
local operations = { reserve = reserve, settle = settle, adjust = adjust, show = function() return "shown" end }
return answer(operations[ask.op](current), current)
