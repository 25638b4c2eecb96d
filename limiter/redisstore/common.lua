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
-- epoch:{tag}        hash  id lanes since n building format (1)

local MAX_LOOK = 60000000        -- every lane is looked at once a minute, whatever was computed under an older limit
local MAX_TTL = 7776000000000    -- 90 days
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local function d(x) return string.format('%d', x) end

-- whole answers the number that a field holds, 0 for a missing one, nil if it is none that sluice writes.
local function whole(s)
  if not s then return 0 end
  local x = tonumber(s)
  if x and x % 1 == 0 and x < 9007199254740992 and x > -9007199254740992 then return x end
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

-- state answers a key's state from its fields, or nil when they are not what sluice writes. s.w is false and s.hd 0 for a
-- missing bucket. The last four are read only where they matter.
local function state(key, v, opening, fails, token, til)
  local w, f, hd, at, exp, opened, closed = whole(v[1]), whole(v[2]), whole(v[3]), whole(v[4]), whole(v[5]), whole(v[6]), whole(v[7])
  if not (w and f and hd and at and exp and opened and closed) then return nil end
  if not (v[1] and v[2] and v[3] and v[4]) then
    if v[1] or v[2] or v[3] or v[4] then return nil end
    w = false
  elseif hd < 1 or f < 0 or f >= hd then
    return nil
  end
  return {key = key, w = w, f = f, hd = hd, at = at, exp = exp, opened = opened, opening = opening,
    closedUntil = closed, fails = fails, token = token, til = til, we = 0, fe = 0, dirty = false, set = false}
end

-- level reads what a reservation needs.
local function level(key, now)
  local v = redis.pcall('HMGET', key, 'tokens', 'frac', 'den', 'updatedAt', 'exp', 'opened', 'closedUntil')
  if v.err then return nil end
  local s = state(key, v, 0, 0, 0, 0)
  if s and s.opened > now then
    s.opening = whole(redis.call('HGET', key, 'opening'))
    if not s.opening then return nil end
  end
  return s
end

-- load reads everything.
local function load(key)
  local v = redis.pcall('HMGET', key, 'tokens', 'frac', 'den', 'updatedAt', 'exp', 'opened', 'closedUntil',
    'opening', 'fails', 'token', 'until')
  if v.err then return nil end
  local opening, fails, token, til = whole(v[8]), whole(v[9]), whole(v[10]), whole(v[11])
  if not (opening and fails and token and til) then return nil end
  return state(key, v, opening, fails, token, til)
end

-- refill brings s to now: s.w, s.f at s.at, and the usable level s.we, s.fe (less while the clock runs behind).
-- c = {num, den, burst, tol}; num 0: paused, num -1: unlimited.
local function refill(s, c, now, since)
  if not s.w then
    -- Missing: full at the very start, later only what may have refilled since the state was lost.
    s.w, s.f, s.at = 0, 0, since
    if since == 0 then s.w, s.at = c.burst, now end
  elseif s.hd ~= c.den then
    s.f = min(c.den - 1, floor(s.f / s.hd * c.den))
  end
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
  local set = s.set
  if not set then
    set = {}
    s.set = set
  end
  set[#set + 1] = field
  set[#set + 1] = value
end

-- save writes the bucket if it was charged, what was put, and an expiry after which the key would say the same as no key.
local function save(s, c, now, margin)
  local bucket = s.dirty and c.num >= 0
  if not bucket and not s.set then return end
  -- An expiry is only ever moved later, so what was stored before is covered by it.
  local need = max(now, s.opened, s.closedUntil, s.til)
  if c.num > 0 then
    need = max(need, s.at + ceil(((c.burst - s.w) * c.den - s.f) / c.num))
  end
  if s.exp < need or s.exp <= now or s.hd ~= c.den then
    local ttl = min(max(need + margin, s.exp) - now, MAX_TTL)
    put(s, 'exp', d(now + ttl))
    if bucket then put(s, 'den', d(c.den)) end
    if bucket then
      redis.call('HSET', s.key, 'tokens', d(s.w), 'frac', d(s.f), 'updatedAt', d(s.at), unpack(s.set))
    else
      redis.call('HSET', s.key, unpack(s.set))
    end
    redis.call('PEXPIRE', s.key, d(ceil(ttl / 1000)))
    return
  end
  if not bucket then
    redis.call('HSET', s.key, unpack(s.set))
  elseif s.set then
    redis.call('HSET', s.key, 'tokens', d(s.w), 'frac', d(s.f), 'updatedAt', d(s.at), unpack(s.set))
  else
    redis.call('HSET', s.key, 'tokens', d(s.w), 'frac', d(s.f), 'updatedAt', d(s.at))
  end
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
