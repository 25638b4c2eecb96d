-- Put before every script: reading, refilling and writing the state of one key. Times are microseconds of Redis' own
-- clock, rates are num/den tokens per microsecond. All numbers are integers below 2^53 and are written with %d, since
-- Lua's own conversion keeps 14 digits only.
--
-- ratelimit:{tag}:<key>  hash  tokens frac den updatedAt   level at updatedAt: tokens + frac/den; negative = slots promised
--                              exp                         when the expiry that is set ends
--                              opened opening              until when so many events are on their way into the lane
--                              closedUntil fails           the receiver is away until; failures in a row
--                              holder token until          the lease of the lane
-- lane:{tag}:<key>   zset  member seq[,attempt,cost,expires,order,first]  score: place in the source
-- busy:{tag}:<key>   zset  the same, leased and not settled
-- retry:{tag}:<key>  zset  the same, score: the event's own due time
-- due:{tag}          zset  key -> time of the next look
-- epoch:{tag}        hash  id lanes since n building

local MAX_LOOK = 60000000        -- every lane is looked at once a minute, whatever was computed under an older limit
local MAX_TTL = 7776000000000    -- 90 days
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local function d(x) return string.format('%d', x) end

local function int(s)
  if not s or #s > 17 or not string.find(s, '^%-?%d+$') then return nil end
  return tonumber(s)
end

local function clock(override)
  if override > 0 then return override end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- epoch answers id-matches, since. A caller that knows another id must not touch anything.
local function epoch(key, id)
  local e = redis.call('HMGET', key, 'id', 'since')
  return e[1] and e[1] == id, tonumber(e[2] or '') or 0
end

-- load answers the state of a key, or nil when it is not what sluice writes.
local function load(key)
  local v = redis.pcall('HMGET', key, 'tokens', 'frac', 'den', 'updatedAt', 'exp', 'opened', 'opening',
    'closedUntil', 'fails', 'token', 'until')
  if v.err then return nil end
  local s = {key = key, set = {}}
  local names = {'w', 'f', 'hd', 'at', 'exp', 'opened', 'opening', 'closedUntil', 'fails', 'token', 'til'}
  for i = 1, #names do
    if v[i] then
      local x = int(v[i])
      if not x then return nil end
      s[names[i]] = x
    elseif i > 4 then
      s[names[i]] = 0
    end
  end
  if s.w or s.f or s.hd or s.at then
    if not (s.w and s.f and s.hd and s.at) or s.hd < 1 or s.f < 0 or s.f >= s.hd then return nil end
  end
  if s.opened == 0 then s.opening = 0 end
  return s
end

-- refill brings s to now: s.w, s.f at s.at, and the usable level s.we, s.fe (less while the clock runs behind).
-- c = {num, den, burst, tol}; num 0: paused, num -1: unlimited.
local function refill(s, c, now, since)
  if not s.w then
    -- Missing: full at the very start, later only what may have refilled since the state was lost.
    s.w, s.f, s.hd, s.at = 0, 0, c.den, since
    if since == 0 then s.w, s.at = c.burst, now end
  end
  if s.hd ~= c.den then s.f = min(c.den - 1, floor(s.f / s.hd * c.den)) end
  local dt = now - s.at
  if dt < 0 then
    if -dt > c.tol then s.at, s.dirty = now, true end
  elseif dt > 0 and c.num > 0 then
    s.at = now
    if s.w >= c.burst or dt >= ceil(((c.burst - s.w) * c.den - s.f) / c.num) then
      s.w, s.f = c.burst, 0
    else
      local u = s.f + dt * c.num
      s.w, s.f = s.w + floor(u / c.den), u % c.den
    end
  end
  if s.w >= c.burst then s.w, s.f = c.burst, 0 end
  s.we, s.fe = s.w, s.f
  if s.at > now and c.num > 0 then
    local u = s.w * c.den + s.f - c.num * (s.at - now)
    s.we, s.fe = floor(u / c.den), u % c.den
  end
end

-- slot answers in how many microseconds the bucket can pay n more tokens.
local function slot(s, c, n)
  if c.num < 0 then return 0 end
  return max(0, ceil(((n - s.we) * c.den - s.fe) / c.num))
end

local function charge(s, n)
  s.w, s.we, s.dirty = s.w - n, s.we - n, true
end

local function put(s, field, value)
  s.set[#s.set + 1] = field
  s.set[#s.set + 1] = value
end

-- save writes the bucket if it was charged, what was put, and an expiry after which the key would say the same as no key.
local function save(s, c, now, margin)
  local bucket = s.dirty and c.num >= 0
  if not bucket and #s.set == 0 then return end
  local need = max(now, s.opened, s.closedUntil, s.til)
  if s.w and c.num > 0 then
    need = max(need, s.at + ceil(((c.burst - s.w) * c.den - s.f) / c.num))
  end
  if bucket then
    put(s, 'tokens', d(s.w))
    put(s, 'frac', d(s.f))
    put(s, 'updatedAt', d(s.at))
    put(s, 'den', d(c.den))
  end
  local ttl = 0
  if s.exp < need or s.exp <= now or s.hd ~= c.den then
    ttl = min(need - now + margin, MAX_TTL)
    put(s, 'exp', d(now + ttl))
  end
  redis.call('HSET', s.key, unpack(s.set))
  if ttl > 0 then redis.call('PEXPIRE', s.key, d(ceil(ttl / 1000))) end
end

-- cost answers the tokens that a lane member takes.
local function cost(member)
  local c = string.match(member, '^%d+,%d+,(%d+)')
  return c and tonumber(c) or 1
end

-- look answers in how many microseconds the lane should be looked at next, -1 when nothing waits.
local function look(s, c, now, lead, lane, retry)
  local t
  local head = redis.call('ZRANGE', lane, '0', '0')[1]
  local back = redis.call('ZRANGE', retry, '0', '0', 'WITHSCORES')
  if not head and not back[1] then return -1 end
  if c.num == 0 then return MAX_LOOK end
  if head then t = slot(s, c, cost(head)) - lead end
  if back[1] then
    local own = max(tonumber(back[2]) - now, slot(s, c, cost(back[1])) - lead)
    t = t and min(t, own) or own
  end
  return min(max(t, s.closedUntil - now, 0), MAX_LOOK)
end

-- give moves everything leased back into the lane.
local function give(busy, lane)
  local b = redis.call('ZRANGE', busy, '0', '-1', 'WITHSCORES')
  for i = 1, #b, 2 do redis.call('ZADD', lane, b[i + 1], b[i]) end
  if #b > 0 then redis.call('DEL', busy) end
end

-- free ends the lease of s.
local function free(s)
  if s.token ~= 0 or s.til ~= 0 then
    redis.call('HDEL', s.key, 'holder', 'token', 'until')
    s.token, s.til = 0, 0
  end
end

-- sleep closes the key because its receiver is away.
local function sleep(s, now, us)
  s.closedUntil, s.fails = max(s.closedUntil, now + us), s.fails + 1
  put(s, 'closedUntil', d(s.closedUntil))
  put(s, 'fails', d(s.fails))
end
