-- The body of an answer, piece by piece -> the LLM tokens it cost. Nothing is held back or kept: at most one line
-- of a stream and one `usage` object. Pieces may be cut anywhere.
-- A reader: feed(bytes), finish() at a clean end; then `total` (nil: no usage was told), `input` (told before
-- the end, nil: not), `emitted` (pieces of text so far), `odd` (a usage was not what it should be).
local usage = {}

local byte, find, match, sub = string.byte, string.find, string.match, string.sub
local ceil, max, min = math.ceil, math.max, math.min

local LINE_BYTES_MAX = 16384 -- a longer line of a stream is read without being kept
local OBJECT_BYTES_MAX = 4096
local KEY_BYTES_MAX = 16
local TOKENS_MAX = 10000000 -- no single answer has more; beyond it a number is not believed
local QUOTE, BACKSLASH, OPEN, ARRAY = byte('"\\{[', 1, 4)

-- Where a `usage` object counts: at the top, or within these. An Anthropic stream tells its input at the start,
-- in `message`, and the rest at its end.
local WITHIN = { response = "whole", message = "opening" }
local FIELDS = {
  prompt_tokens = "input",
  input_tokens = "input",
  cache_creation_input_tokens = "created",
  cache_read_input_tokens = "cached",
  completion_tokens = "output",
  output_tokens = "output",
  total_tokens = "total",
}

-- A whole number of tokens; nil for null; false for what cannot be one.
local function tokens_of(reader, text)
  if text == "null" then
    return nil
  end
  local value = tonumber(text)
  if value == nil then
    value = tonumber((match(text, '^"(.*)"$')))
    reader.odd = true
  end
  if value == nil or value ~= value or value < 0 or value > TOKENS_MAX then
    reader.odd = true
    return false
  end
  return ceil(value)
end

-- One usage object. Fields that are told again replace what was told before: servers repeat cumulative numbers.
-- One that holds a number no answer can have is not believed at all.
local function read_object(reader, text, where)
  local told = {}
  for name, value in sub(text, 2, -2):gsub("%b{}", "null"):gmatch('"([%w_]+)"%s*:%s*([^,%s]+)') do
    local field = FIELDS[name]
    if field ~= nil then
      local tokens = tokens_of(reader, value)
      if tokens == false then
        return
      end
      told[field] = tokens or told[field]
    end
  end
  if next(told) == nil then
    return
  end
  local known = reader.known or {}
  for field, tokens in next, told do
    known[field] = tokens
  end
  reader.known = known
  local input = (known.input or 0) + (known.created or 0) + (known.cached or 0)
  reader.input = known.input and input or reader.input
  if where == "whole" then
    reader.total = told.total or min(TOKENS_MAX, input + (known.output or 0))
  end
end

-- JSON in pieces: follows depth and keys, and hands over each `usage` object that counts.
local function scanner()
  return { depth = 0, key = "", text = nil, kinds = {}, keys = {}, escaped = false, kept = nil }
end

-- The closing quote of a string that goes on at `at`, or nil.
local function closing(scan, piece, at)
  if scan.escaped then
    scan.escaped = false
    at = at + 1
  end
  while true do
    local quote = find(piece, '"', at, true)
    local last = (quote or #piece + 1) - 1
    local before = last
    while before >= at and byte(piece, before) == BACKSLASH do
      before = before - 1
    end
    local escaped = (last - before) % 2 == 1
    if quote == nil then
      scan.escaped = escaped
      return nil
    end
    if not escaped then
      return quote
    end
    at = quote + 1
  end
end

local function open(scan, kind)
  local depth = scan.depth
  local keyed = depth > 0 and depth <= 2 and scan.kinds[depth] == OPEN and scan.key or ""
  if kind == OPEN and keyed == "usage" then
    scan.within = depth == 1 and "whole" or WITHIN[scan.keys[1]]
  else
    scan.within = nil
  end
  if depth <= 2 then
    scan.keys[depth], scan.kinds[depth + 1] = keyed, kind
  end
  scan.depth, scan.key = depth + 1, ""
  return scan.within
end

-- What a usage object is made of, from `from` on; too much of it is not one.
local function keep(scan, piece, from, to)
  local kept = scan.kept .. sub(piece, from, to)
  scan.kept = #kept <= OBJECT_BYTES_MAX and kept or ""
  scan.large = scan.large or #kept > OBJECT_BYTES_MAX
end

local function scan_piece(reader, scan, piece)
  local at, from = 1, 1 -- `from`: where the kept part of this piece begins
  while true do
    if scan.text ~= nil then -- within a string
      local quote = closing(scan, piece, at)
      if #scan.text <= KEY_BYTES_MAX then
        scan.text = scan.text .. sub(piece, at, min((quote or #piece + 1) - 1, at + KEY_BYTES_MAX))
      end
      if quote == nil then
        break
      end
      scan.key, scan.text, at = scan.text, nil, quote + 1
    end
    local found = find(piece, '["{}%[%]]', at)
    if found == nil then
      break
    end
    at = found + 1
    local sign = byte(piece, found)
    if sign == QUOTE then
      scan.text = ""
    elseif sign == OPEN or sign == ARRAY then
      if open(scan, sign) and scan.kept == nil then
        scan.kept, scan.where, scan.until_depth, scan.large, from = "", scan.within, scan.depth, false, found
      end
    else
      if scan.kept ~= nil and scan.depth == scan.until_depth then
        keep(scan, piece, from, found)
        if scan.large then
          reader.odd = true
        else
          read_object(reader, scan.kept, scan.where)
        end
        scan.kept = nil
      end
      scan.depth, scan.key = max(0, scan.depth - 1), ""
    end
  end
  if scan.kept ~= nil then
    keep(scan, piece, from, #piece)
  end
end

local json = {}
json.__index = json

function json:feed(bytes)
  scan_piece(self, self.scan, bytes)
end

function json.finish() end

local sse = {}
sse.__index = sse

local TEXTS = { "content", "text", "reasoning_content", "reasoning", "arguments", "delta" }
for index, name in ipairs(TEXTS) do
  TEXTS[index] = '"' .. name .. '"%s*:%s*"[^"]'
end

-- Whether an event brings a piece of text, which is a token with the usual servers.
local function brings_text(name, data)
  if name ~= nil then
    return sub(name, -5) == "delta" and name ~= "message_delta"
  end
  for index = 1, #TEXTS do
    if find(data, TEXTS[index]) then
      return true
    end
  end
  return false
end

-- Many streams say `"usage":null` with every token; looking closer would cost more than all the rest.
local function tells_usage(data)
  local at = find(data, '"usage"', 1, true)
  if at == nil then
    return false
  end
  local value = match(data, "^%s*:%s*()", at + 7)
  return value == nil or byte(data, value) == OPEN or find(data, '"usage"', value, true) ~= nil
end

local function event(self)
  local data, name = self.data, self.name
  self.data, self.name = nil, nil
  if data == nil then
    if self.scan ~= nil and name ~= "message_delta" then
      self.emitted = self.emitted + (sub(name or "delta", -5) == "delta" and 1 or 0)
    end
    self.scan = nil
    return
  end
  if tells_usage(data) then
    scan_piece(self, scanner(), data)
  end
  if brings_text(name, data) then
    self.emitted = self.emitted + 1
  end
end

-- From here on the data of this event is scanned as it comes.
local function spill(self, text)
  if self.scan == nil then
    self.scan = scanner()
    if self.data ~= nil then
      scan_piece(self, self.scan, self.data .. "\n")
      self.data = nil
    end
  end
  scan_piece(self, self.scan, text)
end

local function line(self, text)
  local first = byte(text)
  if first == 100 then -- d
    local value = match(text, "^data: ?(.*)$")
    if value == nil then
      return
    end
    if self.scan ~= nil then
      spill(self, value .. "\n")
    elseif self.data == nil then
      self.data = value
    elseif #self.data + #value < LINE_BYTES_MAX then
      self.data = self.data .. "\n" .. value
    else
      spill(self, value .. "\n")
    end
  elseif first == 101 then -- e
    self.name = match(text, "^event: ?(.*)$") or self.name
  end
end

-- The rest of a piece, without a line's end.
local function remain(self, text)
  if self.long ~= nil then
    if self.long == "data" then
      spill(self, text)
    end
    return
  end
  self.rest = self.rest .. text
  if #self.rest > LINE_BYTES_MAX then
    local value = match(self.rest, "^data: ?(.*)$")
    self.long, self.rest = value and "data" or "other", ""
    if value then
      spill(self, value)
    end
  end
end

function sse:feed(bytes)
  local from = 1
  while true do
    local stop = find(bytes, "\n", from, true)
    if stop == nil then
      break
    end
    if self.long ~= nil then
      remain(self, sub(bytes, from, stop))
      self.long = nil
    else
      local text = sub(bytes, from, stop - 1)
      if self.rest ~= "" then
        text, self.rest = self.rest .. text, ""
      end
      if byte(text, -1) == 13 then
        text = sub(text, 1, -2)
      end
      if text == "" then
        event(self)
      else
        line(self, text)
      end
    end
    from = stop + 1
  end
  if from <= #bytes then
    remain(self, from == 1 and bytes or sub(bytes, from))
  end
end

-- A last event without the blank line behind it counts.
function sse:finish()
  if self.rest ~= "" then
    self:feed("\n")
  end
  event(self)
end

-- The reader of an answer, or nil when it cannot be read: compressed, or neither JSON nor a stream of events.
function usage.reader(headers)
  local encoding = headers:get("content-encoding")
  local content_type = (headers:get("content-type") or ""):lower()
  if encoding ~= nil and encoding ~= "identity" then
    return nil
  end
  if find(content_type, "text/event-stream", 1, true) == 1 then
    return setmetatable({ emitted = 0, rest = "" }, sse)
  end
  if find(content_type, "^application/[^;]*json") then
    return setmetatable({ emitted = 0, scan = scanner() }, json)
  end
  return nil
end

return usage
