-- A request with a tenant -> its pool, its price and its colours; its answer -> counters and honest headers.
-- POLICY (changes with the files): routes, served, tenants, profiles, priority, shapes, windows. TICK (changes with the
-- load): gateways, costs, failures, breakers. The price travels to the rate limiter as dynamic metadata: class, key and
-- cost of each slot in use, the shortest burst first, because a refusal ends the charging there. So do, where the
-- tenant has a quota, the tokens to `reserve` now and those to `settle` at the end of the stream, whatever ends it.
local METADATA = "tg"
local BODY_METADATA = "tg.body"
local COST_DIGITS = 10
local COST_MAX = 1000000000
local UNITS_PER_S = 1000000
local DEFAULT_MAX_TOKENS = 256 -- assumed where a request names no max_tokens
local BYTES_PER_TOKEN = 4
local TOKENS_MAX = 1000000000
local NOTHING = "" -- no number: Envoy asks nothing
local METERED = 49 -- "1"
local RUNGS = { "0.1", "1", "4", "15", "60", "240" } -- classes that may bound the burst of a key with a deeper one
local SLOTS = { "b1", "b2", "b3", "b4", "b5", "b6", 1, 2, 3 } -- in Envoy's order
local SHARED_MARGIN = 1 - 1e-5 -- Envoy rounds a gateway's part of a bucket down

local byte, sub, floor, ceil, max, min = string.byte, string.sub, math.floor, math.ceil, math.max, math.min

local NOT_READY = answer.UNAVAILABLE
local NO_MODEL = answer.refusal("400", "invalid_request_error", "missing_model", "The request names no model.")
local BAD_BODY = answer.refusal("400", "invalid_request_error", "invalid_json",
  "The body is not valid JSON, or its content type is not application/json.")
local NOT_ALLOWED = answer.refusal("403", "invalid_request_error", "model_not_allowed",
  "Your account may not use this model on this path.")
local UNKNOWN = {}
for _, route in pairs(POLICY.routes) do
  UNKNOWN[route.status] = answer.refusal(route.status, "invalid_request_error", "model_not_found",
    "The model does not exist on this path.")
end

-- Handles of Envoy's statistics by name. The names come from the tables above, never from a client.
local counters, histograms = {}, {}

local function increment(handle, name)
  local counter = counters[name]
  if counter == nil then
    counter = handle:stats():counter(name)
    counters[name] = counter
  end
  counter:inc()
end

local function count(handle, labels, outcome)
  increment(handle, "tg_requests~" .. labels .. "~" .. outcome)
end

local function observe_ms(handle, pool, elapsed_ms)
  local name = "tg_ttfb_ms~" .. pool
  local histogram = histograms[name]
  if histogram == nil then
    histogram = handle:stats():histogram(name, "ms")
    histograms[name] = histogram
  end
  histogram:recordValue(elapsed_ms)
end

-- The pool a request asks for, or nil and a refusal.
local function pool_of(handle, route)
  local served = POLICY.served[route.served]
  if route.from == "fixed" then
    return served[route.model]
  end
  local name
  if route.from == "header" then
    name = handle:headers():get(route.header)
  else
    local body = handle:streamInfo():dynamicMetadata():get(BODY_METADATA)
    if body ~= nil and body.invalid then
      return nil, BAD_BODY
    end
    name = body and body.model
  end
  if type(name) ~= "string" or name == "" then
    return nil, NO_MODEL
  end
  local pool = served[name]
  if pool == nil then
    return nil, UNKNOWN[route.status]
  end
  return pool
end

-- Where this tenant's key stands in the tables, or nil: costs and shapes are strings of fixed-width numbers.
local function index_of(tenant, route, pool)
  local base = tenant and POLICY.tenants.base[tenant]
  if base == nil then
    return nil
  end
  local offset = POLICY.profiles[POLICY.tenants.profile[tenant]][route .. "|" .. pool]
  return offset and base + offset
end

local function fixed_width(text, index, width)
  return tonumber(sub(text, index * width + 1, (index + 1) * width))
end

-- A body without a length was held for its model name already, so asking for it waits for nothing; but it ends the
-- life of every object that the handle gave before.
local function body_bytes(handle, route)
  local bytes = tonumber((handle:headers():get("content-length")))
  if bytes == nil and route.from == "body" then
    local body = handle:body()
    bytes = body and body:length()
  end
  return bytes or 0
end

-- Servers differ in which of these they obey: the largest counts.
local function answer_tokens(body)
  local most
  for _, name in ipairs({ "max_tokens", "max_completion_tokens", "max_output_tokens" }) do
    local tokens = body and tonumber(body[name])
    if tokens and tokens >= 0 then
      most = max(most or 0, tokens)
    end
  end
  return most or DEFAULT_MAX_TOKENS
end

-- LLM tokens of the prompt and of the answer, at most, before anybody has counted them.
local function estimated_tokens(handle, bytes)
  local body = handle:streamInfo():dynamicMetadata():get(BODY_METADATA)
  return min(TOKENS_MAX, ceil(bytes / BYTES_PER_TOKEN)), min(TOKENS_MAX, answer_tokens(body))
end

-- Cost units of this request in window `w`. One that asks for more than the bucket holds pays for a full bucket:
-- otherwise it would wait for ever.
local function window_cost(handle, w, bytes)
  local windows = POLICY.windows
  local cost = windows.cost[w]
  if windows.per_token[w] then
    local depth = tonumber(windows.class[w]) * UNITS_PER_S / TICK.gateways
    local input, output = estimated_tokens(handle, bytes)
    cost = cost >= COST_MAX and cost or min(floor(cost * (input + output) + 0.5), floor(depth))
  end
  return max(1, min(COST_MAX, cost))
end

local WINDOW_PART = {
  t = function(tenant)
    return tenant
  end,
  m = function(_, pool)
    return pool
  end,
  p = function(_, _, route)
    return route.pattern
  end,
}

local function window_key(w, tenant, pool, route)
  local key = "w|" .. POLICY.windows.name[w]
  for part in POLICY.windows.fields[w]:gmatch(".") do
    key = key .. "|" .. WINDOW_PART[part](tenant, pool, route)
  end
  return key
end

local function take(metadata, slot, class, key, cost)
  metadata:set(METADATA, "c" .. slot, class)
  metadata:set(METADATA, "k" .. slot, key)
  metadata:set(METADATA, "u" .. slot, cost)
end

-- A key whose floor needs a deep bucket pays into every shorter one, down to the burst that is wanted, in which one
-- request fits: else it could save minutes of its floor and spend them at the rate it borrows now. Into all of them,
-- because one that is left out fills, and would be a present when the rate falls to where it is the shortest.
local function charge_bursts(metadata, shape, key, cost)
  local shapes = POLICY.shapes
  for rung = shapes.first[shape], shapes.last[shape] do
    local room = tonumber(RUNGS[rung]) * UNITS_PER_S
    if cost * TICK.gateways <= (TICK.gateways > 1 and room * SHARED_MARGIN or room) then
      take(metadata, "b" .. rung, RUNGS[rung], key, cost)
    end
  end
end

local function charge(handle, metadata, index, id, tenant, pool, route, bytes)
  local shapes = POLICY.shapes
  local shape = fixed_width(shapes.text, index, shapes.width) + 1
  for slot = 1, 3 do
    local w = shapes[slot][shape]
    if w < 0 then
      break
    end
    local class, key, cost
    if w == 0 then
      class, key, cost = shapes.class[shape], "a|" .. id, fixed_width(TICK.costs, index, COST_DIGITS)
      charge_bursts(metadata, shape, key, cost)
    else
      class, key, cost = POLICY.windows.class[w], window_key(w, tenant, pool, route), window_cost(handle, w, bytes)
    end
    take(metadata, slot, class, key, cost)
  end
  metadata:set(METADATA, "shape", shape)
end

-- Until something better is known, `settle` is what a client who leaves now has cost: its prompt.
local function reserve(handle, metadata, bytes)
  local input, output = estimated_tokens(handle, bytes)
  metadata:set(METADATA, "reserve", max(1, min(TOKENS_MAX, ceil(input + output))))
  metadata:set(METADATA, "settle", max(1, input))
end

local function colour(headers, name, pool, tenant, status)
  headers:add("x-tidegate-route", name)
  if pool == nil then
    return
  end
  headers:add("x-tidegate-pool", pool)
  headers:add("x-tidegate-model-version", pool)
  headers:add("resilience.status", status)
  headers:add("resilience.failure-rate", TICK.failures[pool] or "insufficient")
  local profile = tenant and POLICY.tenants.profile[tenant]
  if profile then
    headers:add("x-tidegate-priority", POLICY.priority[profile])
  end
end

-- The breaker stops this request: counted, and refused unless breakers only watch.
local function rest(handle, metadata, labels, pool)
  local enforced = breaker.enforced(pool)
  count(handle, labels, (enforced and "shed" or "would_limit") .. "~breaker")
  if enforced then
    count(handle, labels, "offered")
    metadata:set(METADATA, "outcome", "shed")
  end
  return enforced
end

local function price(handle)
  local name = handle:streamInfo():routeName()
  local route = POLICY.routes[name]
  if route == nil then
    return NOT_READY
  end
  local bytes = body_bytes(handle, route)
  local metadata = handle:streamInfo():dynamicMetadata()
  local seen = metadata:get(METADATA)
  local tenant = seen and seen.tenant
  metadata:set(METADATA, "route", name)
  local pool, refusal
  if route.from ~= "nothing" then
    pool, refusal = pool_of(handle, route)
    if pool == nil then
      return refusal or UNKNOWN[route.status]
    end
    metadata:set(METADATA, "model_version", pool)
    metadata:set(METADATA, "started_ms", handle:timestamp())
  end
  local status = "closed"
  if not route.free then
    local index = index_of(tenant, name, pool)
    if index == nil then
      return NOT_ALLOWED
    end
    local stop
    status, stop = breaker.judge(pool, handle:timestamp())
    if stop ~= nil and rest(handle, metadata, name .. "~" .. tenant .. "~" .. pool, pool) then
      return stop
    end
    charge(handle, metadata, index, name .. "|" .. tenant .. "|" .. pool, tenant, pool, route, bytes)
    if byte(POLICY.metered, index + 1) == METERED then
      reserve(handle, metadata, bytes)
    end
    metadata:set(METADATA, "outcome", "admitted")
    count(handle, name .. "~" .. tenant .. "~" .. pool, "offered")
  end
  colour(handle:headers(), name, pool, tenant, status)
  handle:clearRouteCache() -- the route's cluster is the header just set
  return nil
end

local function slots_of(seen)
  local shapes, windows = POLICY.shapes, POLICY.windows
  local slots = {}
  for _, slot in ipairs(SLOTS) do
    local cost = seen["u" .. slot]
    if cost ~= nil then
      local w = shapes[slot] and shapes[slot][seen.shape] or 0
      local entry = { class = seen["c" .. slot], cost = cost }
      if w > 0 then
        entry.name, entry.quota, entry.window_s = windows.label[w], windows.tokens[w], windows.window_s[w]
      else
        entry.name = "adaptive"
        entry.quota, entry.window_s = denial.quota(cost >= COST_MAX and 0 or UNITS_PER_S / cost)
      end
      slots[#slots + 1] = entry
    end
  end
  return slots
end

-- Time to first byte: recorded at the first piece of the body, while a stream still runs. The loop ends there, so
-- later pieces pass without a script.
local function time_first_byte(handle, seen)
  for chunk in handle:bodyChunks() do
    if chunk:length() > 0 then
      observe_ms(handle, seen.model_version, max(0, handle:timestamp() - seen.started_ms))
      break
    end
  end
end

local function settle(handle, tokens)
  handle:streamInfo():dynamicMetadata():set(METADATA, "settle", tokens)
end

-- What the answer costs, as far as it is known at each piece: Envoy settles whenever the stream ends, and then no
-- script runs. A stream that is cut off has cost its prompt and what came; an answer without usage its reservation.
local function account(handle, seen)
  local reader = usage.reader(handle:headers())
  local told = seen.settle
  local prompt = told
  local first = true
  if reader == nil or reader.emitted == nil then
    told = seen.reserve
    settle(handle, told)
  end
  for piece in handle:bodyChunks() do
    local length = piece:length()
    if length > 0 then
      if first then
        first = false
        observe_ms(handle, seen.model_version, max(0, handle:timestamp() - seen.started_ms))
      end
      if reader == nil then
        break
      end
      if not pcall(reader.feed, reader, piece:getBytes(0, length)) then
        reader = nil
        settle(handle, seen.reserve)
        break
      end
      local tokens = reader.total
        or reader.emitted == nil and seen.reserve
        or (reader.input or prompt) + reader.emitted
      if tokens ~= told then
        told = tokens
        settle(handle, tokens)
      end
    end
  end
  if reader ~= nil then
    pcall(reader.finish, reader)
  end
  if reader == nil or reader.total == nil then
    settle(handle, seen.reserve)
    increment(handle, "tg_usage~" .. seen.model_version .. "~missing")
  elseif reader.total ~= told then
    settle(handle, reader.total)
  end
  if reader ~= nil and reader.odd then
    increment(handle, "tg_usage~" .. seen.model_version .. "~odd")
  end
end

-- Whether a model server did what it was asked to. Over gRPC an error may come with a status of 200.
local function succeeded(headers)
  local grpc_status = headers:get("grpc-status")
  return sub(headers:get(":status"), 1, 1) == "2" and (grpc_status == nil or grpc_status == "0")
end

-- `slot` is the limit that bound: the rule that an operator asks about.
local function note(handle, seen, outcome, slot)
  handle:streamInfo():dynamicMetadata():set(METADATA, "outcome", outcome)
  count(handle, seen.route .. "~" .. seen.tenant .. "~" .. seen.model_version, outcome .. "~" .. slot.name)
end

-- luacheck: globals envoy_on_request envoy_on_response
function envoy_on_request(handle)
  answer.guard(handle, price)
end

-- Takes the mark of our own 429 off. The router stamps whatever comes from a model server, which might carry it too.
local function take_mark(headers, name)
  if headers:get(name) == nil then
    return false
  end
  headers:remove(name)
  return headers:get("x-envoy-upstream-service-time") == nil
end

-- Body and headers are the policy service's own, but for what a gRPC client reads.
local function out_of_quota(handle, seen)
  local headers = handle:headers()
  settle(handle, NOTHING)
  note(handle, seen, "limited", { name = "quota" })
  if headers:get("grpc-status") ~= nil then
    headers:replace("grpc-message", "quota used up")
  end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local over_quota = take_mark(headers, "x-tidegate-quota")
  local limited = take_mark(headers, "x-tidegate-limited") and not over_quota -- the policy service uses both marks
  local seen = handle:streamInfo():dynamicMetadata():get(METADATA)
  if seen == nil or seen.model_version == nil then
    return -- refused earlier, or answered without a model
  end
  if seen.u1 ~= nil then
    local depth, left = denial.take(headers)
    local would_limit = not limited and handle:requestHeaders():get("x-tidegate-would-limit") ~= nil
    if limited or would_limit then
      local slot = denial.binding(slots_of(seen), depth, left, TICK.gateways)
      note(handle, seen, limited and "limited" or "would_limit", slot)
      if limited then
        if seen.reserve ~= nil then
          settle(handle, NOTHING)
        end
        denial.shape(handle, slot, left, TICK.gateways)
        return
      end
    end
  end
  if over_quota then
    out_of_quota(handle, seen)
  elseif seen.reserve ~= nil and succeeded(headers) then
    account(handle, seen)
  elseif seen.reserve ~= nil then
    settle(handle, 0)
  elseif headers:get(":status") == "200" then
    time_first_byte(handle, seen)
  end
end
