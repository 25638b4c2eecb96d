-- Put behind base.lua before every script but take: reading, refilling and writing the state of one key. The arithmetic is that
-- of package limiter (state.go, sliding.go), which is the oracle of the tests.

local MAX_LOOK = 60000000        -- every lane is looked at once a minute, whatever was computed under an older limit
local LANE_TTL = 63072000000000 -- a lane's class and costs are kept for 2 years, and for one at least after a worker's look
local SLICES = 20

-- prepare computes once what all entries of a rule need: the fields that a reservation reads, and all of them.
local function prepare(L)
  local level, all = {}, {}
  for i = 1, #L do
    local c = L[i]
    c.slice, c.denText, c.ready = ceil(c.den / SLICES), d(c.den), 0
    c.second = c.kind == 1 and -(floor(HORIZON / c.den) + 1) * c.num or -c.num * HORIZON
    level[4 * i - 3], level[4 * i - 2], level[4 * i - 1], level[4 * i] = c.tokens, c.frac, c.denField, c.at
  end
  local k = 4 * #L + 5
  level[k - 4], level[k - 3], level[k - 2], level[k - 1], level[k] = 'exp', 'opened', 'closedUntil', 'extra', 'openingExtra'
  for i = 1, k do all[i] = level[i] end
  all[k + 1], all[k + 2], all[k + 3], all[k + 4], all[k + 5] = 'opening', 'fails', 'token', 'until', 'class'
  all[k + 6] = 'failure'
  L.level, L.all = level, all
end

-- part answers the state of one limit from its four fields, or nil when they are damaged. hd is 0 for a missing one.
local function part(c, v, i)
  local a, b, hd, at = v[i], v[i + 1], v[i + 2], v[i + 3]
  if not (a or b or hd or at) then return {w = 0, f = 0, hd = 0, at = 0} end
  if not (a and b and hd and at) then return nil end
  a, hd, at = whole(a), hd == c.denText and c.den or whole(hd), whole(at)
  if not (a and hd and at) or hd < 1 then return nil end
  if c.kind < 3 then
    b = whole(b)
    if not b or b < 0 or b >= hd then return nil end
    return {w = a, f = b, hd = hd, at = at}
  end
  local counts = {}
  for x in string.gmatch(b, '[^,]+') do
    local n = whole(x)
    if not n or n < 0 then return nil end
    counts[#counts + 1] = n
  end
  if #counts ~= SLICES + 1 then return nil end
  return {w = a, f = 0, hd = hd, at = at, counts = counts}
end

-- The state of the key at hand: there is one at a time, so that not every key of a call needs a table of its own.
local current = {false, key = '', exp = 0, opened = 0, closedUntil = 0, extra = 0, openingExtra = 0, opening = 0, fails = 0,
  token = 0, til = 0, kept = 0, class = '', failure = '', dirty = false, rebased = false, set = false, over = false, stranger = false}

-- state answers a key's state from its fields, or nil when they are not what sluice writes.
local function state(L, key, v)
  local n = 4 * #L
  local exp, opened, closed, extra, opening = whole(v[n + 1]), whole(v[n + 2]), 0, 0, 0
  if v[n + 3] or v[n + 4] or v[n + 5] then closed, extra, opening = whole(v[n + 3]), whole(v[n + 4]), whole(v[n + 5]) end
  if not (exp and opened and closed and extra and opening) then return nil end
  local s = current
  s.key, s.exp, s.opened, s.closedUntil, s.extra, s.openingExtra = key, exp, opened, closed, max(0, extra), opening
  s.opening, s.fails, s.token, s.til, s.kept, s.class, s.failure = 0, 0, 0, 0, 0, nil, nil
  s.dirty, s.rebased, s.set, s.over, s.stranger = false, false, false, false, false
  for i = 1, #L do
    s[i] = part(L[i], v, 4 * i - 3)
    if not s[i] then return nil end
  end
  return s
end

-- level reads what a reservation needs.
local function level(L, key, now)
  if not L.level then prepare(L) end
  local v = redis.pcall('HMGET', key, unpack(L.level))
  if v.err then return nil end
  local s = state(L, key, v)
  if s and s.opened > now then
    s.opening = whole(redis.call('HGET', key, 'opening'))
    if not s.opening then return nil end
  end
  return s
end

-- load reads everything.
local function load(L, key)
  if not L.all then prepare(L) end
  local v = redis.pcall('HMGET', key, unpack(L.all))
  if v.err then return nil end
  local s = state(L, key, v)
  if not s then return nil end
  local n = 4 * #L + 5
  if v[n + 1] or v[n + 2] or v[n + 3] or v[n + 4] then
    s.opening, s.fails, s.token, s.til = whole(v[n + 1]), whole(v[n + 2]), whole(v[n + 3]), whole(v[n + 4])
    if not (s.opening and s.fails and s.token and s.til) then return nil end
  end
  s.class, s.failure = v[n + 5] or '', v[n + 6]
  return s
end

local function expires(c, q) return (q + 1) * c.slice + c.den end

-- begin makes slice number q the newest, unless it is older.
local function begin(p, q)
  local shift = q - p.w
  if shift <= 0 then return end
  for i = SLICES + 1, 1, -1 do
    p.counts[i] = i - shift >= 1 and p.counts[i - shift] or 0
  end
  p.w = q
end

-- used answers the tokens that count at t.
local function used(c, p, t)
  local n = 0
  for i = 1, SLICES + 1 do
    if expires(c, p.w - i + 1) > t then n = n + p.counts[i] end
  end
  return n
end

local function refillSliding(c, p, now, since, tol)
  local rebased = false
  if p.hd == 0 then
    p.counts = {}
    for i = 1, SLICES + 1 do p.counts[i] = 0 end
    p.at, p.w = now, 0
    if since ~= 0 then -- as if all tokens had been taken at the moment of the loss: nothing is known of them
      p.at, p.w, p.counts[1] = since, floor(since / c.slice), c.num
    end
  end
  local ahead = p.at - now
  if ahead > tol then
    p.w, p.at, rebased = p.w - floor(ahead / c.slice), now, true
  elseif ahead < 0 then
    p.at = now
  end
  begin(p, floor(now / c.slice))
  return rebased
end

-- cutDebt makes a debt no greater than what a second pays off: promises are for a second at most, so that what is beyond was
-- promised under a faster limit. It is paid a second after updatedAt, whichever limit is gone by.
local function cutDebt(c, p, now)
  if c.kind == 1 then
    p.w = max(p.w, c.second)
  elseif p.w * c.den + p.f < c.second then
    p.w, p.f, p.at = 0, 0, min(p.at, now) + HORIZON
  end
end

local function refillPart(c, p, now, since, tol)
  if p.hd == 0 then
    p.at = since
    if since == 0 then p.w, p.at = c.burst, now end
  elseif p.hd ~= c.den then -- a live change: only the fraction is rescaled, down
    p.f = min(c.den - 1, floor(p.f / p.hd * c.den))
  end
  local rebased = p.at - now > tol
  if rebased then p.at = now end
  if p.w < 0 then cutDebt(c, p, now) end
  local gone = now - p.at
  if gone > 0 and c.kind == 1 then
    local windows = floor(gone / c.den)
    p.at = p.at + windows * c.den -- not now: the windows don't drift
    if windows >= ceil((c.burst - p.w) / c.num) then p.w = max(p.w, c.burst) else p.w = p.w + windows * c.num end
  elseif gone > 0 then
    p.at = now
    local gain = gone * c.num -- one beyond what is exact is more than can be missing
    if gain >= (c.burst - p.w) * c.den - p.f then
      p.w, p.f = c.burst, 0
    else
      local u = p.f + gain
      p.f = u % c.den
      p.w = p.w + (u - p.f) / c.den
    end
  end
  if p.w >= c.burst then p.w, p.f = c.burst, 0 end
  return rebased
end

-- What kinds are called in the names of fields.
local KINDS = {bucket = 0, window = 1, leaky = 2, sliding = 3}

-- reslice makes the slices of another period those of c.
local function reslice(c, p)
  local was, length = ceil(p.hd / SLICES), c.slice
  local function last(q)
    return floor(max(q * was, min((q + 1) * was - 1, p.at + HORIZON)) / length)
  end
  local counts, newest = {}, last(p.w)
  for i = 1, SLICES + 1 do counts[i] = 0 end
  for i = 1, SLICES + 1 do
    local shift = newest - last(p.w - i + 1)
    if shift <= SLICES then counts[shift + 1] = counts[shift + 1] + p.counts[i] end
  end
  p.w, p.counts = newest, counts
end

-- others answers by kind the state used last of those that the key went by before and doesn't now.
local function others(key, L)
  local flat, h, mine, best = redis.call('HGETALL', key), {}, {}, {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  for i = 1, #L do mine[L[i].denField] = true end
  for field, den in pairs(h) do
    local prefix = not mine[field] and (field == 'den' and '' or match(field, '^(%a+/.+:)den$'))
    local kind = prefix and (prefix == '' and 0 or KINDS[match(prefix, '^%a+')])
    if kind then
      local p = part({kind = kind}, {h[prefix .. (kind == 3 and 'slice' or 'tokens')], h[prefix .. (kind == 3 and 'counts' or 'frac')],
        den, h[prefix .. 'updatedAt']}, 1)
      local b = best[kind]
      if p then
        p.from, p.name = prefix, prefix == '' and 'bucket/1s' or string.sub(prefix, 1, -2)
        if not b or p.at > b.at or p.at == b.at and (kind < 3 and p.w < b.w or (kind == 3 or p.w == b.w) and p.name < b.name) then
          best[kind] = p
        end
      end
    end
  end
  return best
end

-- inherit gives each limit without a state that of another one of its kind whose place it takes, which is moved when it is written.
-- So a change of the unit gives no more than one of the number: nothing but what accrues. See inherit.go of package limiter.
local function inherit(s, L)
  local best = others(s.key, L)
  for i = 1, #L do
    local c, b = L[i], best[L[i].kind]
    if s[i].hd == 0 and b then
      local p = {w = b.w, f = b.f, hd = b.hd, at = b.at, counts = b.counts, from = b.from}
      if c.kind == 1 then p.at = p.at + min(0, p.hd - c.den) end
      if c.kind == 3 then reslice(c, p) end
      s[i] = p
    end
  end
end

-- refill brings all limits of s to now. A missing one is full at the very start, later holds what may have accrued since
-- the state was lost. A clock that went back too far to wait for is the new time, and that has to be stored.
local function refill(s, L, now, since)
  for i = 1, #L do
    if s[i].hd == 0 and s.exp > 0 then -- else the key has no limit's state at all
      inherit(s, L)
      break
    end
  end
  for i = 1, #L do
    local c, p = L[i], s[i]
    local rebased
    if c.kind == 3 then
      rebased = refillSliding(c, p, now, since, L.tol)
    else
      rebased = refillPart(c, p, now, since, L.tol)
    end
    if rebased then p.rebased, s.rebased = true, true end
  end
end

-- left answers the whole tokens and the rest that a limit can pay with now.
local function left(c, p, now)
  if c.kind == 3 then
    return c.num - used(c, p, max(now, p.w * c.slice)), 0
  elseif c.kind == 1 then
    return p.w + floor((now - p.at) / c.den) * c.num, p.at + c.den - now
  elseif p.at <= now then
    return p.w, p.f
  end
  local u = p.w * c.den + p.f - c.num * (p.at - now)
  return floor(u / c.den), u % c.den
end

-- fits answers how many of n events at that price all limits can pay now.
local function fits(s, L, now, n, price)
  for i = 1, #L do
    if L[i].kind == 3 and s[i].w * L[i].slice > now then return 0 end
    n = min(n, floor(left(L[i], s[i], now) / price))
  end
  return max(0, n)
end

-- ready answers the first time, not before now, at which a limit can pay.
local function ready(c, p, now, price)
  if c.kind == 1 then return max(now, p.at + ceil((price - p.w) / c.num) * c.den) end
  if c.kind ~= 3 then
    if p.w >= price and p.at <= now then return now end
    local at = p.at + ceil(((price - p.w) * c.den - p.f) / c.num)
    return at > now and at or now
  end
  local t = max(now, p.w * c.slice)
  local n = used(c, p, t)
  for i = SLICES + 1, 1, -1 do
    if n + price <= c.num then break end
    local over = expires(c, p.w - i + 1)
    if over > t and p.counts[i] > 0 then n, t = n - p.counts[i], over end
  end
  return t
end

-- earliest answers the first time at which all limits can pay: what fits one at a time fits it later.
local function earliest(s, L, now, price)
  local at = now
  for i = 1, #L do
    local c = L[i]
    c.ready = ready(c, s[i], now, price)
    if c.ready > at then at = c.ready end
  end
  return at
end

-- never says that events at that price can't go by these limits: one of them never holds so much.
local function never(L, price)
  for i = 1, #L do
    if price > L[i].burst then return true end
  end
  return false
end

-- wait answers in how many microseconds an event at that price can go, or be dead-lettered since it never can.
local function wait(s, L, now, price)
  if L.mode == 2 or never(L, price) then return 0 end
  return earliest(s, L, now, price) - now
end

-- charge takes n tokens from every limit at the time at, which is now, or not before the earliest, asked for just before.
-- What a level would have lost at its cap until then is lost.
local function charge(s, L, now, at, n)
  for i = 1, #L do
    local c, p = L[i], s[i]
    if c.kind == 3 then
      begin(p, floor(at / c.slice))
      p.counts[1] = p.counts[1] + n
    elseif c.kind == 1 then
      p.w = p.w - n - max(0, p.w + floor((at - p.at) / c.den) * c.num - c.burst)
    elseif at > now and at > c.ready then
      local u = p.w * c.den + p.f
      u = u - max(0, u + c.num * (at - p.at) - c.burst * c.den) - n * c.den
      p.w, p.f = floor(u / c.den), u % c.den
    else
      p.w = p.w - n
    end
  end
  s.dirty = true
end

-- fullAt answers when all limits are as good as missing, if nothing more is taken.
local function fullAt(s, L, now)
  local at = now
  for i = 1, #L do
    local c, p = L[i], s[i]
    if c.kind == 1 then
      at = max(at, p.at + ceil((c.burst - p.w) / c.num) * c.den)
    elseif c.kind ~= 3 then
      at = max(at, p.at + ceil(((c.burst - p.w) * c.den - p.f) / c.num))
    else
      for j = 1, SLICES + 1 do
        if p.counts[j] > 0 then
          at = max(at, expires(c, p.w - j + 1))
          break
        end
      end
    end
  end
  return at
end

local fields, values = {}, 0 -- what is to be written of the key at hand, and how many of these there are

local function put(s, field, value)
  if not s.set then s.set, values = true, 0 end
  fields[values + 1], fields[values + 2] = field, value
  values = values + 2
end

-- putLimits writes the limits, and their den where it isn't stored; it answers whether any wasn't. Of a key that wasn't
-- charged only those whose clock was set back are written.
local function putLimits(s, L)
  local changed = false
  for i = 1, #L do
    local c, p = L[i], s[i]
    if s.dirty or p.rebased then
      put(s, c.tokens, d(p.w))
      if c.kind == 3 then
        local t = {}
        for j = 1, SLICES + 1 do t[j] = d(p.counts[j]) end
        put(s, c.frac, table.concat(t, ','))
      else
        put(s, c.frac, d(p.f))
      end
      put(s, c.at, d(p.at))
      if p.hd ~= c.den or p.from then
        put(s, c.denField, d(c.den))
        changed = true
      end
      if p.from then
        redis.call('HDEL', s.key, p.from .. (c.kind == 3 and 'slice' or 'tokens'), p.from .. (c.kind == 3 and 'counts' or 'frac'),
          p.from .. 'den', p.from .. 'updatedAt')
      end
    end
  end
  return changed
end

-- classify notes the tier of the lane's newest event; '' when it has none, or the lane no event. Nothing but the class says
-- by which limits a lane goes, so the key must not expire before it is taken away.
local function classify(s, class)
  if s.class == class then return end
  s.class, s.over = class, class == ''
  put(s, 'class', class)
end

-- resting says whether limits that don't rule now have left their state: they may rule again. How long they remember isn't known.
local function resting(s, L)
  local list, ruling = redis.call('HGETALL', s.key), {}
  for i = 1, #L do ruling[L[i].at] = true end
  for i = 1, #list, 2 do
    if find(list[i], 'updatedAt$') and not ruling[list[i]] then return true end
  end
  return false
end

-- save writes the limits if they were charged, what was put, and an expiry after which the key would say the same as no
-- key. An expiry is only ever moved later, until the lane's class or its costs are taken away: so what was stored before is
-- covered by it. It is moved even if nothing else is written, since the limits that it was computed for may have been quicker.
local function save(s, L, now)
  local written = s.dirty or s.rebased or s.set
  if not written and s.exp == 0 then return end
  local changed = (s.dirty or s.rebased) and putLimits(s, L)
  local need = max(fullAt(s, L, now), s.opened, s.closedUntil, s.til, s.kept)
  local lane = s.class and s.class ~= '' or s.extra > 0
  if s.over and not lane and not resting(s, L) then s.exp = 0 end
  local ttl = 0
  if lane and s.exp < now + LANE_TTL / 2 then
    ttl = min(max(need + L.margin - now, LANE_TTL), MAX_TTL)
  elseif s.exp < need or written and (s.exp <= now or changed) then
    ttl = min(max(need + L.margin, s.exp) - now, MAX_TTL)
  end
  if not written and (ttl == 0 or not lane and need <= now) then return end
  if ttl > 0 then put(s, 'exp', d(now + ttl)) end
  if s.set then redis.call('HSET', s.key, unpack(fields, 1, values)) end
  if ttl > 0 then redis.call('PEXPIRE', s.key, d(ceil(ttl / 1000))) end
end

-- cost answers the tokens that a lane member takes.
local function cost(member)
  local c = find(member, ',', 1, true) and match(member, '^%d+,%d+,(%d+)')
  return c and tonumber(c) or 1
end

-- look answers in how many microseconds a lane should be looked at next whose first member is head, and that of retry, with its
-- time, back; -1 when there are neither. By another class' limits that can't be told: it is now.
local function look(s, L, now, lead, head, back)
  local t
  if not head and not back then return -1 end
  if s.stranger then return max(0, min(s.closedUntil - now, MAX_LOOK)) end
  if L.mode == 1 then return MAX_LOOK end
  if head then t = wait(s, L, now, cost(head)) - lead end
  if back then
    local own = max(tonumber(back[2]) - now, wait(s, L, now, cost(back[1])) - lead)
    t = t and min(t, own) or own
  end
  return min(max(t, s.closedUntil - now, 0), MAX_LOOK)
end
