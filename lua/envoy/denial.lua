-- Our own 429 -> the headers that say which limit binds, how large it is and when to come back.
-- Envoy reports the refusing bucket as x-ratelimit-*, in cost units: its depth tells the burst class, what is left
-- tells how long the next request has to wait. Numbers are rounded, so that they compress.
local denial = {}

local ceil, floor, log10, max = math.ceil, math.floor, math.log10, math.max
local char = string.char

local UNITS_PER_S = 1000000
local CLOSED = 1000000000 -- this cost is above every bucket: the limit is zero
local CLOSED_RETRY_S = 3600
local REPORTED = { "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset" }

denial.body = answer.body("rate_limit_error", "rate_limit_exceeded",
  "Rate limit reached. Retry after the time that the Retry-After header gives.")
denial.message = "rate limit reached"
-- A limit of zero is no matter of waiting; clients tell the two apart by `code`.
denial.closed_body = answer.body("insufficient_quota", "insufficient_quota",
  "Your limit for this model is zero. Ask the operator of this gateway.")
denial.closed_message = "limit is zero"

local function two_digits(value, round)
  if value < 100 then
    return max(1, round(value))
  end
  local unit = 10 ^ (floor(log10(value)) - 1)
  return round(value / unit) * unit
end

local function nearest(value)
  return floor(value + 0.5)
end

-- Requests/s -> an integer quota and the seconds it stands for: at least ten, if an hour has ten.
function denial.quota(rate_per_s)
  if rate_per_s <= 0 then
    return 0, 3600
  end
  for _, window_s in ipairs({ 1, 10, 60 }) do
    if rate_per_s * window_s >= 10 then
      return two_digits(rate_per_s * window_s, nearest), window_s
    end
  end
  return two_digits(rate_per_s * 3600, nearest), 3600
end

-- The first slot that could not pay from the bucket Envoy reports: Envoy stops at the first refusal.
-- Slots: list of {name, class, cost, quota, window_s}. Of n gateways each may use an n-th of a bucket; Envoy keeps
-- the books of the whole one, and charges n times the cost.
function denial.binding(slots, depth, left, gateways)
  local candidate
  for _, slot in ipairs(slots) do
    if left == nil or slot.cost * gateways > left then
      if depth == nil or math.abs(depth - tonumber(slot.class) * UNITS_PER_S) <= 1 then
        return slot
      end
      candidate = candidate or slot
    end
  end
  return candidate or slots[1]
end

-- Whole seconds until the bucket holds this cost again.
function denial.retry_after_s(slot, left, gateways)
  if slot.cost >= CLOSED then
    return CLOSED_RETRY_S
  end
  return two_digits((slot.cost * gateways - (left or 0)) / UNITS_PER_S, ceil)
end

local function varint(number)
  local out = ""
  while number >= 128 do
    out = out .. char(number % 128 + 128)
    number = floor(number / 128)
  end
  return out .. char(number)
end

local function field(number, bytes)
  return char(number * 8 + 2) .. varint(#bytes) .. bytes
end

-- google.rpc.Status with RetryInfo, the standard way to tell a gRPC client when to retry.
function denial.grpc_details(seconds, message)
  local delay = "\8" .. varint(seconds)
  local retry = field(1, "type.googleapis.com/google.rpc.RetryInfo") .. field(2, field(1, delay))
  return "\8\8" .. field(2, message) .. field(3, retry)
end

-- Reads what Envoy reported and takes it off the response: depth and rest of the refusing bucket.
function denial.take(headers)
  local depth, left = headers:get(REPORTED[1]), headers:get(REPORTED[2])
  for i = 1, #REPORTED do
    headers:remove(REPORTED[i])
  end
  return tonumber(depth), tonumber(left)
end

function denial.shape(handle, slot, left, gateways)
  local headers = handle:headers()
  local seconds = denial.retry_after_s(slot, left, gateways)
  local name = '"' .. slot.name .. '"'
  headers:replace("retry-after", string.format("%d", seconds))
  headers:replace("ratelimit-policy", string.format("%s;q=%d;w=%d", name, slot.quota, slot.window_s))
  headers:replace("ratelimit", string.format("%s;r=0;t=%d", name, seconds))
  local closed = slot.cost >= CLOSED
  local status = headers:get("grpc-status")
  if status ~= nil then
    local message = closed and denial.closed_message or denial.message
    headers:replace("grpc-message", message)
    headers:replace("grpc-status-details-bin", handle:base64Escape(denial.grpc_details(seconds, message)))
    return
  end
  headers:replace("content-type", "application/json")
  handle:body(true):setBytes(closed and denial.closed_body or denial.body)
end

return denial
