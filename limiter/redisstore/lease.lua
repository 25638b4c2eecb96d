-- lease gives one worker the right to push the next events of lanes and books their slots.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, lead us, holder, lease us, events of a key that may be leased at a
--       time over all workers (0: any),
--       then per entry: the place of its shard, from 1; key, its rule, its class, token of the lease held (0: a new one), most
--       events, horizon us, notice us: no slot is sooner than that, the place in the source up to which events may go ('': any),
--       the place of one that may go as well
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry:
--       {code (0 asked, 2 held by another, 3 the lease has passed to another, 4 the lane is of another class, which
--       stands in the fifth place: nothing was changed, -1 damaged, or an event can't be read), token (0: not granted),
--       events waiting, us until the next look (-1: no need), the place, in digits, of the next event if that mustn't go yet (0:
--       it may), how often in a row the receiver was away,
--       then per event: member, order, us until its slot (it takes no tokens: -1: it is to be dropped, because its time is
--       over or, with a "!" before the name, because a newer one of its name waits; -2: it is to be dead-lettered, because it
--       costs more than a limit of its lane ever holds)}}
-- A holder that asks anew without its token has lost it (a lost reply): it takes the lease over from itself.
-- Invariant: an event is leased by one worker at a time; a new holder first takes back what the last one left; while the
--       receiver fails only one event is leased, one of those that were never tried if there is any; slots never exceed
--       burst + rate x time.
--
-- cat base.lua common.lua waiting.lua lease.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 100000 me 5000000 0 1 k 1 '' 0 10 1000000 0 '' 0
local all, a = rules()
local sinces, a, others = shards(a, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local L, since, due -- of the entry
local lead, holder, ttl, together = tonumber(ARGV[a]), ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
local reply = begun(now, #sinces)

-- What of the lane or of retry goes under the lease: the members as they lie there, and orders and members as they lie in busy.
local taken, held, count, none = {}, {}, 0, {}

-- lease puts one event under the lease.
local function lease(out, member, order, at, as)
  as = proper(as or member, order)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = as, order, at
  count = count + 1
  taken[count], held[2 * count - 1], held[2 * count] = member, order, as
  gained = gained - beyond(member)
end

-- shift moves what was leased from a set to busy.
local function shift(from, busy)
  if count == 0 then return end
  redis.call('ZREM', from, unpack(taken, 1, count))
  redis.call('ZADD', busy, unpack(held, 1, 2 * count))
  moved, count = moved - count, 0
end

-- useless leases an event that takes no tokens, if it is one: its time is over, a newer one of its name waits, or it costs
-- more than it could ever find, since the limit was lowered.
local function useless(out, collapse, member, order)
  local plain = not find(member, ',', 1, true)
  local ms = not plain and match(member, '^%d+,%d+,%d+,(%d+)')
  if not plain and superseded(collapse, member) then
    lease(out, member, order, -1, over(member))
  elseif not plain and find(member, '!', 1, true) or ms and ms ~= '0' and tonumber(ms) * 1000 <= now then
    lease(out, member, order, -1)
  elseif never(L, cost(member)) then
    lease(out, member, order, -2)
  else
    return false
  end
  return true
end

-- book leases one event if its slot lies within the horizon.
local function book(s, out, member, order, horizon, notice)
  local price = cost(member)
  local at = L.mode == 2 and now or max(now + notice, earliest(s, L, now, price))
  if at > now + horizon then return false end
  if L.mode == 0 then charge(s, L, now, at, price) end
  lease(out, member, order, at - now)
  return true
end

-- reach answers how many of most events find slots within the horizon, or a number that isn't less.
local function reach(s, horizon, most)
  if L.mode ~= 0 then return most end
  for i = 1, #L do
    local c, p = L[i], s[i]
    if c.kind ~= 1 and c.kind ~= 3 then
      most = min(most, max(0, floor(p.w + (p.f + c.num * (now + horizon - p.at)) / c.den)))
    end
  end
  return most
end

-- legible says whether the first so many members, each step places behind the one before, can be read, and their names too.
local function legible(members, most, step, collapse)
  local named
  for i = 1, min(#members, most * step), step do
    local n = readable(members[i], step == 2 and members[i + 1])
    if not n then return false end
    if n > 6 then named = members[i] end
  end
  return not named or newest(collapse, named) ~= nil
end

-- read answers the first events of the lane with their orders, one more than find slots of most, and whether that are all; nil if
-- it can't read them.
local function read(s, lane, collapse, most, horizon)
  if most == 0 then return none, true end
  local n = reach(s, horizon, most)
  local first = redis.pcall('ZRANGE', lane, '0', d(n), 'WITHSCORES')
  if not typed(first) or not legible(first, most, 2, collapse) then return nil end
  return first, #first <= 2 * n
end

-- Of what is left in the lane: the first event, and how many there are; nil when that isn't known.
local ahead, rest

-- fillOwn books at most so many events of retry whose time has come. It answers how many more may be leased; 0 as well if one has
-- no slot, for then the lane has none.
local function fillOwn(s, out, own, collapse, most, horizon, notice)
  for i = 1, #own do
    local order = place(own[i])
    if not useless(out, collapse, own[i], order) and not book(s, out, own[i], order, horizon, notice) then return 0 end
  end
  return most - #own
end

-- fillFirst books at most so many of the first events of the lane, and answers how many more may be leased if all of them were.
local function fillFirst(s, out, first, collapse, most, horizon, notice, upTo, stray)
  for i = 1, #first, 2 do
    local member, order = first[i], first[i + 1]
    ahead, rest = member, (#first - i + 1) / 2
    if most == 0 then return 0 end
    if upTo ~= '' then
      local at = stands(member, order)
      if after(at, upTo) and at ~= stray then
        out[5] = at
        return 0
      end
    end
    if not useless(out, collapse, member, order) and not book(s, out, member, order, horizon, notice) then return 0 end
    most = most - 1
  end
  ahead, rest = nil, 0
  return most
end

-- fill books what it can besides what is leased, and answers false if it can't read what waits.
local function fill(s, out, lane, busy, retry, collapse, leased, most, horizon, notice, upTo, stray, bare)
  ahead, rest = nil, nil
  if s.closedUntil > now or L.mode == 1 then return true end
  if together > 0 then most = min(most, together - leased) end
  if s.fails > 0 then most = min(most, 1 - leased) end
  most = min(most, 1000) -- no more than unpack takes; the holder asks again
  if most <= 0 then return true end
  -- While the receiver fails an event that wasn't tried yet finds out whether it is the events that failed.
  local own = (bare or s.fails > 0 and size(lane) ~= 0) and none or redis.call('ZRANGEBYSCORE', retry, '-inf', d(now), 'LIMIT', '0', d(most))
  local first, all = read(s, lane, collapse, most - #own, horizon)
  if not first or not legible(own, most, 1, collapse) then return false end
  most = fillOwn(s, out, own, collapse, most, horizon, notice)
  shift(retry, busy)
  if most == 0 then return true end
  while first do
    most = fillFirst(s, out, first, collapse, most, horizon, notice, upTo, stray)
    shift(lane, busy)
    if not all then rest = nil end
    if all or most == 0 then break end
    first, all = read(s, lane, collapse, most, horizon)
  end
  return true
end

-- damaged answers for a lane that can't be leased until somebody mends it.
local function damaged(key, lane)
  redis.call('ZADD', due, d(now + 5000000), key)
  return {-1, 0, size(lane) or 0, 5000000, '0', 0}
end

-- hold makes ready what is leased, which is nothing for a new holder once it has taken back what the last one left. It answers
-- how many events are leased and how many wait; nil, and nothing has changed, if one of the sets is none.
local function hold(token, lane, busy, retry)
  local waiting, leased = backlog(lane, retry), 0
  if token > 0 then leased = size(busy) end
  if not waiting or not leased then return nil end
  local before = moved
  if token == 0 and not give(busy, lane) then return nil end
  return leased, waiting + moved - before
end

-- keep notes the lease, or ends it if it holds nothing, and answers what there is to know of the lane.
local function keep(s, out, key, token, leased, lane, retry, horizon, bare)
  local next = -1
  if out[3] > 0 and bare and ahead then
    next = look(s, L, now, min(lead, horizon), ahead)
  elseif out[3] > 0 then
    next = look(s, L, now, min(lead, horizon), first(lane, retry, bare))
  end
  if out[5] ~= '0' then next = max(next, 1000000) end -- who asked looks sooner
  if leased > 0 then
    s.token, s.til = token, now + ttl
    local til = d(s.til)
    put(s, 'holder', holder)
    put(s, 'token', d(token))
    put(s, 'until', til)
    redis.call('ZADD', due, til, key)
  else
    out[2] = 0
    free(s)
    if next >= 0 then
      next = max(next, 10000) -- never a hot loop, whatever the worker has no room for
      redis.call('ZADD', due, d(now + next), key)
    else
      redis.call('ZREM', due, key)
      classify(s, '')
    end
  end
  tally(s, next < 0)
  save(s, L, now)
  out[4] = next
end

-- grant leases what can be leased to one that may: token is that of its lease, 0 for a new one.
local function grant(s, e, key, token, lane, busy, retry, collapse)
  local horizon = tonumber(ARGV[e + 5])
  local bare = redis.call('EXISTS', busy, retry) == 0 -- mostly it is
  local leased, waiting = 0, nil
  if not bare then leased, waiting = hold(token, lane, busy, retry) end
  if not leased then return damaged(key, lane) end
  if token == 0 then token = max(now, s.token + 1) end
  refill(s, L, now, since)
  local out, before = {0, token, 0, 0, '0', s.fails}, moved
  if not fill(s, out, lane, busy, retry, collapse, leased, tonumber(ARGV[e + 4]), horizon, tonumber(ARGV[e + 6]),
    ARGV[e + 7], ARGV[e + 8], bare) then
    tally(s)
    save(s, L, now)
    return damaged(key, lane)
  end
  waiting = bare and (rest or size(lane)) or not bare and waiting + moved - before
  if not waiting then return damaged(key, lane) end
  out[3] = waiting
  keep(s, out, key, token, leased + before - moved, lane, retry, horizon, bare)
  return out
end

local e = a + 4
for k = 2 * #sinces + 1, #KEYS, 5 do
  local place, key, class, token = tonumber(ARGV[e]), ARGV[e + 1], ARGV[e + 3], tonumber(ARGV[e + 4])
  L, since, due = all[ARGV[e + 2]], sinces[place], KEYS[2 * place]
  local lane, busy, retry, collapse = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local s = load(L, KEYS[k])
  local out
  if not s then
    out = damaged(key, lane)
  elseif token > 0 and s.token ~= token then
    out = {3, 0, 0, -1, '0', 0}
  elseif token == 0 and s.til > now and redis.call('HGET', KEYS[k], 'holder') ~= holder then
    out = {2, 0, size(lane) or 0, s.til - now, '0', 0}
    redis.call('ZADD', due, d(s.til), key)
  elseif s.class ~= class then
    out = {4, 0, 0, 0, s.class, 0}
  else
    out = grant(s, e + 1, key, token, lane, busy, retry, collapse)
  end
  reply[#reply + 1] = out
  e = e + 10
end
return reply
