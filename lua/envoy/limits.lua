-- A request with a tenant -> its pool, its price and its colours; its answer -> counters and honest headers.
-- POLICY (changes with the files): routes, served, tenants, profiles, priority, shapes, windows. TICK (changes with the
-- load): gateways, costs, failures. The price travels to the rate limiter as dynamic metadata: class, key and cost
-- of up to three slots, the shortest burst first, because a refusal ends the charging there.
local METADATA = "tg"
local BODY_METADATA = "tg.body"
local COST_DIGITS = 10
local COST_MAX = 1000000000
local UNITS_PER_S = 1000000
local DEFAULT_MAX_TOKENS = 256 -- assumed where a request names no max_tokens
local BYTES_PER_TOKEN = 4

local sub, floor, ceil, max, min = string.sub, math.floor, math.ceil, math.max, math.min

local NOT_READY = answer.UNAVAILABLE
local NO_MODEL = answer.refusal("400", "invalid_request_error", "missing_model", "The request names no model.")
local BAD_BODY = answer.refusal("400", "invalid_request_error", "invalid_json", "The body is not valid JSON.")
local NOT_ALLOWED = answer.refusal("403", "invalid_request_error", "model_not_allowed",
  "Your account may not use this model on this path.")
local UNKNOWN = {}
for _, route in pairs(POLICY.routes) do
  UNKNOWN[route.status] = answer.refusal(route.status, "invalid_request_error", "model_not_found",
    "The model does not exist on this path.")
end

-- Handles of Envoy's statistics by name. The names come from the tables above, never from a client.
local counters, histograms = {}, {}

local function count(handle, labels, outcome)
  local name = "tg_requests~" .. labels .. "~" .. outcome
  local counter = counters[name]
  if counter == nil then
    counter = handle:stats():counter(name)
    counters[name] = counter
  end
  counter:inc()
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

local function estimated_tokens(handle)
  local bytes = tonumber((handle:headers():get("content-length"))) or 0
  local body = handle:streamInfo():dynamicMetadata():get(BODY_METADATA)
  local answer_tokens = body and tonumber(body.max_tokens) or DEFAULT_MAX_TOKENS
  return ceil(bytes / BYTES_PER_TOKEN) + answer_tokens
end

-- Cost units of this request in window `w`. One that asks for more than the bucket holds pays for a full bucket:
-- otherwise it would wait for ever.
local function window_cost(handle, w)
  local windows = POLICY.windows
  local cost = windows.cost[w]
  if windows.per_token[w] then
    local depth = tonumber(windows.class[w]) * UNITS_PER_S / TICK.gateways
    cost = cost >= COST_MAX and cost or min(floor(cost * estimated_tokens(handle) + 0.5), floor(depth))
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

local function charge(handle, metadata, index, id, tenant, pool, route)
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
    else
      class, key, cost = POLICY.windows.class[w], window_key(w, tenant, pool, route), window_cost(handle, w)
    end
    metadata:set(METADATA, "c" .. slot, class)
    metadata:set(METADATA, "k" .. slot, key)
    metadata:set(METADATA, "u" .. slot, cost)
  end
  metadata:set(METADATA, "shape", shape)
end

local function colour(headers, name, pool, tenant)
  headers:add("x-tidegate-route", name)
  if pool == nil then
    return
  end
  headers:add("x-tidegate-pool", pool)
  headers:add("x-tidegate-model-version", pool)
  headers:add("resilience.status", "closed")
  headers:add("resilience.failure-rate", TICK.failures[pool] or "insufficient")
  local profile = tenant and POLICY.tenants.profile[tenant]
  if profile then
    headers:add("x-tidegate-priority", POLICY.priority[profile])
  end
end

local function price(handle)
  local name = handle:streamInfo():routeName()
  local route = POLICY.routes[name]
  if route == nil then
    return NOT_READY
  end
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
  if not route.free then
    local index = index_of(tenant, name, pool)
    if index == nil then
      return NOT_ALLOWED
    end
    charge(handle, metadata, index, name .. "|" .. tenant .. "|" .. pool, tenant, pool, route)
    metadata:set(METADATA, "outcome", "admitted")
    count(handle, name .. "~" .. tenant .. "~" .. pool, "offered")
  end
  colour(handle:headers(), name, pool, tenant)
  handle:clearRouteCache() -- the route's cluster is the header just set
  return nil
end

local function slots_of(seen)
  local shapes, windows = POLICY.shapes, POLICY.windows
  local slots = {}
  for slot = 1, 3 do
    local cost = seen["u" .. slot]
    if cost == nil then
      break
    end
    local w = (shapes[slot][seen.shape]) or 0
    local entry = { class = seen["c" .. slot], cost = cost }
    if w > 0 then
      entry.name, entry.quota, entry.window_s = windows.label[w], windows.tokens[w], windows.window_s[w]
    else
      entry.name = "adaptive"
      entry.quota, entry.window_s = denial.quota(cost >= COST_MAX and 0 or UNITS_PER_S / cost)
    end
    slots[#slots + 1] = entry
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

-- `slot` is the limit that bound: the rule that an operator asks about.
local function note(handle, seen, outcome, slot)
  handle:streamInfo():dynamicMetadata():set(METADATA, "outcome", outcome)
  count(handle, seen.route .. "~" .. seen.tenant .. "~" .. seen.model_version, outcome .. "~" .. slot.name)
end

-- luacheck: globals envoy_on_request envoy_on_response
function envoy_on_request(handle)
  answer.guard(handle, price)
end

-- Our own 429. The router stamps whatever comes from a model server, which might carry the mark as well.
local function is_ours(headers)
  return headers:get("x-tidegate-limited") ~= nil and headers:get("x-envoy-upstream-service-time") == nil
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local limited = is_ours(headers)
  headers:remove("x-tidegate-limited")
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
        denial.shape(handle, slot, left, TICK.gateways)
        return
      end
    end
  end
  if headers:get(":status") == "200" then
    time_first_byte(handle, seen)
  end
end
