-- A pool's breaker, as the control plane judged it last -> whether a request may pass here and now.
-- TICK.breakers holds the pools whose breaker is not closed: open_s seconds more of refusing everything, then half-open
-- until half_s, then closed. So a gateway whose control plane went away lets go by itself; with one, the next push
-- comes long before that. `share` of the requests pass while half-open; without `enforced` they are counted only.
local breaker = {}

local ceil, floor, random = math.ceil, math.floor, math.random

local PROBES_PER_S = 3 -- of one worker at most, whatever the share
local HALF_OPEN_RETRY_S = 3

local loaded_ms -- when this script first saw a request
local second, tried = {}, {}

local MESSAGE = "The model is failing and gets a rest. Retry after the time that the Retry-After header gives."

local function refusal(retry_after_s)
  local header = { ["retry-after"] = string.format("%d", retry_after_s) }
  return answer.refusal("503", "server_error", "circuit_open", MESSAGE, header)
end

local function tries(pool, share, now_ms)
  local now_s = floor(now_ms / 1000)
  if second[pool] ~= now_s then
    second[pool], tried[pool] = now_s, 0
  end
  if tried[pool] >= PROBES_PER_S or random() > share then
    return false
  end
  tried[pool] = tried[pool] + 1
  return true
end

-- The state of the pool's breaker, and the refusal of this request if it has to be refused.
function breaker.judge(pool, now_ms)
  local entry = TICK.breakers[pool]
  if entry == nil then
    return "closed"
  end
  if loaded_ms == nil then
    loaded_ms = now_ms
    math.randomseed(now_ms % 2147483648) -- or every push would begin the same series
  end
  local age_s = (now_ms - loaded_ms) / 1000
  if age_s < entry.open_s then
    return "open", refusal(ceil(entry.open_s - age_s))
  end
  if age_s >= entry.half_s then
    return "closed"
  end
  if tries(pool, entry.share, now_ms) then
    return "half-open"
  end
  return "half-open", refusal(HALF_OPEN_RETRY_S)
end

function breaker.enforced(pool)
  return TICK.breakers[pool].enforced
end

return breaker
