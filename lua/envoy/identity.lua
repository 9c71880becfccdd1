-- A request -> its tenant, before anything is charged: strips what clients may not say, verifies what they show.
-- POLICY: identity (route -> required | default_tenant | none), digests (SHA-256 of a key -> tenant),
-- jwt (list of {name, claim}), jwt_tenants (claim value -> tenant), default_tenant.
local KEY_BYTES_MAX = 512 -- a longer "key" is nobody's, and not worth digesting
local AUTHORIZATION_BYTES_MAX = 1024 -- the pattern below takes seconds on 50 kB of well chosen spaces
local METADATA = "tg"
local JWT_METADATA = "envoy.filters.http.jwt_authn"

local UNAUTHENTICATED = answer.refusal("401", "invalid_request_error", "invalid_api_key",
  "Incorrect or missing API key.", { ["www-authenticate"] = 'Bearer realm="tidegate"' })

-- Three outcomes throughout: a tenant's id, `false` for a credential that is nobody's, nil for none shown.
local function by_key(key)
  if key == nil or key == "" then
    return nil
  end
  return #key <= KEY_BYTES_MAX and POLICY.digests[sha256(key)] or false
end

local function by_authorization(value)
  if value == nil or value == "" then
    return nil
  end
  if #value > AUTHORIZATION_BYTES_MAX then
    return false
  end
  local scheme, credential = value:match("^(%S+) *(.-) *$")
  if scheme == nil or scheme:lower() ~= "bearer" then
    return false
  end
  return by_key(credential)
end

local function claim_of(claims, name)
  if claims[name] ~= nil then
    return claims[name]
  end
  for part in name:gmatch("[^.]+") do
    if type(claims) ~= "table" then
      return nil
    end
    claims = claims[part]
  end
  return claims
end

-- Only what Envoy's jwt_authn has verified is in this metadata.
local function by_jwt(handle)
  if #POLICY.jwt == 0 then
    return nil
  end
  local verified = handle:streamInfo():dynamicMetadata():get(JWT_METADATA)
  if verified == nil then
    return nil
  end
  for _, provider in ipairs(POLICY.jwt) do
    local claims = verified[provider.name]
    if type(claims) == "table" then
      local value = claim_of(claims, provider.claim)
      return type(value) == "string" and POLICY.jwt_tenants[value] or false
    end
  end
  return nil
end

local function shown(handle, headers)
  local tenant = by_jwt(handle)
  if tenant == nil then -- else the header holds the verified token, which is no API key
    tenant = by_authorization(headers:get("authorization"))
  end
  local other = by_key(headers:get("x-api-key"))
  if tenant == nil then
    return other
  end
  if other == nil or other == tenant then
    return tenant
  end
  return false -- two credentials, two tenants
end

-- The tenant, or nil. A wrong credential is an error even where none is needed: junk keys gain nothing.
local function tenant_of(handle, headers, mode)
  if mode == "none" then
    return POLICY.default_tenant
  end
  local tenant = shown(handle, headers)
  if tenant == nil and mode == "default_tenant" then
    return POLICY.default_tenant
  end
  return tenant or nil
end

local function admit(handle)
  local headers = handle:headers()
  trusted.strip(headers)
  local mode = POLICY.identity[handle:streamInfo():routeName()] -- nil: a path we answer ourselves
  local tenant = mode and tenant_of(handle, headers, mode)
  headers:remove("authorization")
  headers:remove("x-api-key")
  if tenant then
    handle:streamInfo():dynamicMetadata():set(METADATA, "tenant", tenant)
    headers:add("x-tidegate-tenant", tenant)
    return nil
  end
  return mode ~= nil and mode ~= "none" and UNAUTHENTICATED or nil
end

-- An HTTP/1 request with a length has no trailers, and waiting for them costs a second run of the script.
local function may_have_trailers(handle)
  return handle:streamInfo():protocol():sub(1, 6) ~= "HTTP/1" or handle:headers():get("content-length") == nil
end

-- luacheck: globals envoy_on_request
function envoy_on_request(handle)
  answer.guard(handle, admit)
  if not may_have_trailers(handle) then
    return
  end
  local trailers = handle:trailers() -- waits without holding the body back
  if trailers then
    trusted.strip(trailers)
    trailers:remove("authorization")
    trailers:remove("x-api-key")
  end
end
