-- A stand-in for the handle Envoy passes to a script, with the manners that matter: names are lower case, one name
-- may have several values, `get` of an absent header returns no value at all, a map must not change under its
-- iterator, `respond` ends the script.
local spec = {}

local function header_map(entries)
  local map = { entries = {}, iterating = 0 }
  local function check()
    assert(map.iterating == 0, "header map changed under its iterator")
  end
  function map:add(name, value)
    check()
    assert(type(value) == "string", "header values are strings")
    self.entries[#self.entries + 1] = { name:lower(), value }
  end
  function map:remove(name)
    check()
    for i = #self.entries, 1, -1 do
      if self.entries[i][1] == name:lower() then
        table.remove(self.entries, i)
      end
    end
  end
  function map:replace(name, value)
    self:remove(name)
    self:add(name, value)
  end
  function map:get(name)
    local values = {}
    for _, entry in ipairs(self.entries) do
      if entry[1] == name:lower() then
        values[#values + 1] = entry[2]
      end
    end
    if #values > 0 then
      return table.concat(values, ",")
    end
  end
  for _, entry in ipairs(entries) do
    map:add(entry[1], entry[2])
  end
  return map
end

-- Envoy's LuaJIT honours __pairs; not every build does, so the scripts are given this one.
function spec.pairs(value)
  if type(value) ~= "table" or value.entries == nil then
    return next, value, nil
  end
  local index = 0
  value.iterating = value.iterating + 1
  return function()
    index = index + 1
    if value.entries[index] == nil then
      value.iterating = value.iterating - 1
      return nil
    end
    return value.entries[index][1], value.entries[index][2]
  end
end

local function metadata_map(namespaces)
  local map = { namespaces = namespaces }
  function map:get(namespace)
    if self.namespaces[namespace] ~= nil then
      return self.namespaces[namespace]
    end
  end
  function map:set(namespace, key, value)
    assert(value ~= nil, "metadata values are not nil")
    self.namespaces[namespace] = self.namespaces[namespace] or {}
    self.namespaces[namespace][key] = value
  end
  return map
end

local function stats_of(world)
  local stats = {}
  function stats.counter(_, name)
    world.lookups = world.lookups + 1
    return {
      inc = function()
        world.counters[name] = (world.counters[name] or 0) + 1
      end,
    }
  end
  function stats.histogram(_, name, unit)
    assert(unit == "ms")
    return {
      recordValue = function(_, value)
        world.histograms[name] = world.histograms[name] or {}
        table.insert(world.histograms[name], value)
      end,
    }
  end
  return stats
end

-- What outlives one stream.
function spec.world()
  return { counters = {}, histograms = {}, lookups = 0, now_ms = 1000 }
end

-- One stream. `request`: {route, headers, trailers, metadata, protocol}; lists are Lua tables of {name, value}.
function spec.stream(world, request)
  local stream = {
    world = world,
    request = header_map(request.headers),
    trailers = request.trailers and header_map(request.trailers),
    metadata = metadata_map(request.metadata or {}),
    errors = {},
    cleared = 0,
  }

  local function handle_of(headers, trailers, chunks)
    local handle = {}
    function handle.headers()
      return headers
    end
    function handle.requestHeaders()
      return stream.request
    end
    function handle.trailers()
      return trailers
    end
    function handle.streamInfo()
      return {
        dynamicMetadata = function()
          return stream.metadata
        end,
        routeName = function()
          return request.route
        end,
        protocol = function()
          return request.protocol or "HTTP/2"
        end,
      }
    end
    function handle.stats()
      return stats_of(world)
    end
    function handle.timestamp()
      return world.now_ms
    end
    function handle.clearRouteCache()
      stream.cleared = stream.cleared + 1
    end
    function handle.logErr(_, text)
      table.insert(stream.errors, text)
    end
    function handle.base64Escape(_, bytes)
      return "base64:" .. bytes
    end
    function handle.respond(_, answer_headers, body)
      stream.answer = { headers = answer_headers, body = body }
      coroutine.yield()
      error("the script went on after respond")
    end
    function handle.body()
      return {
        length = function()
          return request.body_bytes or 0
        end,
        setBytes = function(_, bytes)
          stream.body = bytes
        end,
      }
    end
    function handle.bodyChunks()
      local index = 0
      return function()
        index = index + 1
        local chunk = chunks and chunks[index]
        if chunk == nil then
          return nil
        end
        world.now_ms = world.now_ms + chunk[1]
        stream.pieces = index
        return {
          length = function()
            return #chunk[2]
          end,
          getBytes = function(_, from, length)
            return chunk[2]:sub(from + 1, from + length)
          end,
        }
      end
    end
    return handle
  end

  local function run(script, handle)
    local thread = coroutine.create(script)
    local ok, message = coroutine.resume(thread, handle)
    assert(ok, message)
  end

  function stream.on_request(script)
    run(script, handle_of(stream.request, stream.trailers))
  end
  -- `chunks`: list of {milliseconds until it comes, bytes}.
  function stream.on_response(script, headers, chunks)
    stream.response = header_map(headers)
    run(script, handle_of(stream.response, nil, chunks))
  end
  return stream
end

return spec
