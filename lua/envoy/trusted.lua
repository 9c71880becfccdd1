-- Which header names only this gateway may set, and how to remove a client's copies of them.
-- Envoy has lower-cased names already. Servers in the CGI tradition read `_` (and some `.`) as `-`, so every
-- spelling that could arrive as one of ours counts.
local trusted = {}

local byte, find = string.byte, string.find
local R, X = byte("rx", 1, 2)

-- The first letter decides for nearly every header: patterns are dear.
function trusted.is(name)
  local first = byte(name)
  if first == X then
    return find(name, "^x[-_.]tidegate") ~= nil
  end
  return first == R and find(name, "^resilience[-_.]") ~= nil
end

-- Headers by which a client could steer this proxy's router: retries, timeouts, names of statistics.
function trusted.steers(name)
  return byte(name) == X
    and find(name, "x-envoy-", 1, true) == 1
    and name ~= "x-envoy-external-address"
    and name ~= "x-envoy-internal"
    and find(name, "x-envoy-original-", 1, true) == nil
end

-- Removes every copy from a header or trailer map. The names are collected first: the map may not change under
-- its own iterator.
function trusted.strip(map)
  local names
  for name in pairs(map) do
    if trusted.is(name) or trusted.steers(name) then
      names = names or {}
      names[#names + 1] = name
    end
  end
  for i = 1, names and #names or 0 do
    map:remove(names[i])
  end
end

return trusted
