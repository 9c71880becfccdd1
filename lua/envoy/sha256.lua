-- A string -> its SHA-256 as 64 lower-case hexadecimal digits (FIPS 180-4), in LuaJIT's bit operations.
-- API keys are configured as digests only, so a request's key is digested before it is looked up.
local bit = require("bit")
local band, bnot, bxor, bor = bit.band, bit.bnot, bit.bxor, bit.bor
local lshift, rshift, ror, tobit, tohex = bit.lshift, bit.rshift, bit.ror, bit.tobit, bit.tohex
local byte, char, rep = string.byte, string.char, string.rep

-- The first 32 bits of the fractional part of `x`: how the standard defines its constants.
local function fraction32(x)
  return tobit(math.floor((x - math.floor(x)) * 4294967296))
end

local function first_primes(count)
  local primes, candidate = {}, 2
  while #primes < count do
    local prime = true
    for _, p in ipairs(primes) do
      if candidate % p == 0 then
        prime = false
        break
      end
    end
    if prime then
      primes[#primes + 1] = candidate
    end
    candidate = candidate + 1
  end
  return primes
end

local ROUND, START = {}, {}
for i, p in ipairs(first_primes(64)) do
  ROUND[i] = fraction32(p ^ (1 / 3))
  if i <= 8 then
    START[i] = fraction32(p ^ 0.5)
  end
end

local words = {} -- the message schedule, reused: nothing yields in here

local function schedule(text, first)
  for i = 1, 16 do
    local a, b, c, d = byte(text, first + 4 * i - 4, first + 4 * i - 1)
    words[i] = bor(lshift(a, 24), lshift(b, 16), lshift(c, 8), d)
  end
  for i = 17, 64 do
    local x, y = words[i - 15], words[i - 2]
    local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
    local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
    words[i] = tobit(words[i - 16] + s0 + words[i - 7] + s1)
  end
end

local function compress(state)
  local a, b, c, d, e, f, g, h = unpack(state)
  for i = 1, 64 do
    local s1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
    local choice = bxor(band(e, f), band(bnot(e), g))
    local t1 = tobit(h + s1 + choice + ROUND[i] + words[i])
    local s0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
    local majority = bxor(band(a, b), band(a, c), band(b, c))
    h, g, f, e = g, f, e, tobit(d + t1)
    d, c, b, a = c, b, a, tobit(t1 + tobit(s0 + majority))
  end
  state[1], state[2] = tobit(state[1] + a), tobit(state[2] + b)
  state[3], state[4] = tobit(state[3] + c), tobit(state[4] + d)
  state[5], state[6] = tobit(state[5] + e), tobit(state[6] + f)
  state[7], state[8] = tobit(state[7] + g), tobit(state[8] + h)
end

-- One bit, zeros up to 56 bytes of the last block, then the length in bits (texts here are far below 2^32 bits).
local function padded(text)
  local bits = #text * 8
  local length = ""
  for shift = 24, 0, -8 do
    length = length .. char(band(rshift(bits, shift), 255))
  end
  return text .. "\128" .. rep("\0", (55 - #text) % 64) .. "\0\0\0\0" .. length
end

local function sha256(text)
  local state = { unpack(START) }
  local blocks = padded(text)
  for first = 1, #blocks, 64 do
    schedule(blocks, first)
    compress(state)
  end
  for i = 1, 8 do
    state[i] = tohex(state[i])
  end
  return table.concat(state)
end

return sha256
