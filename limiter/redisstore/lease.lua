-- lease gives one worker the right to push the next events of lanes and books their slots.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, lead us, holder, lease us, events of a key that may be leased at a
--       time over all workers (0: any),
--       then per entry: the place of its shard, from 1; key, its rule, its class, token of the lease held (0: a new one), most
--       events, horizon us, notice us: no slot is sooner than that, the place in the source up to which events may go (-1: any),
--       the place of one that may go as well
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry:
--       {code (0 asked, 2 held by another, 3 the lease has passed to another, 4 the lane is of another class, which
--       stands in the fifth place: nothing was changed, -1 damaged, or an event can't be read), token (0: not granted),
--       events waiting, us until the next look (-1: no need), the place of the next event if that mustn't go yet (0: it may),
--       then per event: member, order, us until its slot (it takes no tokens: -1: it is to be dropped, because its time is
--       over or, with a "!" before the name, because a newer one of its name waits; -2: it is to be dead-lettered, because it
--       costs more than a limit of its lane ever holds)}}
-- A holder that asks anew without its token has lost it (a lost reply): it takes the lease over from itself.
-- Invariant: an event is leased by one worker at a time; a new holder first takes back what the last one left; while the
--       receiver fails only one event is leased; slots never exceed burst + rate x time.
--
-- cat base.lua common.lua waiting.lua lease.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 100000 me 5000000 0 1 k 1 '' 0 10 1000000 0 -1 0
local all, a = rules()
local sinces, a, others = shards(a, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local L, since, due -- of the entry
local lead, holder, ttl, together = tonumber(ARGV[a]), ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
local reply = begun(now, #sinces)

-- lease puts one event under the lease.
local function lease(out, from, busy, member, order, at, as)
  remove(from, member)
  member = as or member
  redis.call('ZADD', busy, order, member)
  out[#out + 1] = member
  out[#out + 1] = order
  out[#out + 1] = at
end

-- useless leases an event that takes no tokens, if it is one: its time is over, a newer one of its name waits, or it costs
-- more than it could ever find, since the limit was lowered.
local function useless(out, from, busy, collapse, member, order)
  local ms = string.match(member, '^%d+,%d+,%d+,(%d+)')
  if superseded(collapse, member) then
    lease(out, from, busy, member, order, -1, over(member))
  elseif string.find(member, '!', 1, true) or ms and ms ~= '0' and tonumber(ms) * 1000 <= now then
    lease(out, from, busy, member, order, -1)
  elseif never(L, cost(member)) then
    lease(out, from, busy, member, order, -2)
  else
    return false
  end
  return true
end

-- book leases one event if its slot lies within the horizon.
local function book(s, out, from, busy, member, order, horizon, notice)
  local price = cost(member)
  local at = L.mode == 2 and now or max(now + notice, earliest(s, L, now, price))
  if at > now + horizon then return false end
  if L.mode == 0 then charge(s, L, now, at, price) end
  lease(out, from, busy, member, order, at - now)
  return true
end

-- read answers at most so many events that wait, first those of retry whose time has come, and those of the lane with their
-- orders; nil if any isn't readable, or the names aren't.
local function read(lane, retry, collapse, most, bare)
  local own = bare and {} or redis.call('ZRANGEBYSCORE', retry, '-inf', d(now), 'LIMIT', '0', d(most))
  local first = #own < most and redis.call('ZRANGE', lane, '0', d(most - #own - 1), 'WITHSCORES') or {}
  local named
  for i = 1, #own do
    local n = readable(own[i])
    if not n then return nil end
    if n > 6 then named = own[i] end
  end
  for i = 1, #first, 2 do
    local n = readable(first[i], first[i + 1])
    if not n then return nil end
    if n > 6 then named = first[i] end
  end
  if named and newest(collapse, named) == nil then return nil end
  return own, first
end

-- fill books what it can besides what is leased, and answers false if it can't read what waits.
local function fill(s, out, lane, busy, retry, collapse, leased, most, horizon, notice, upTo, stray, bare)
  if s.closedUntil > now or L.mode == 1 then return true end
  if together > 0 then most = min(most, together - leased) end
  if s.fails > 0 then most = min(most, 1 - leased) end
  if most <= 0 then return true end
  local own, first = read(lane, retry, collapse, most, bare)
  if not own then return false end
  for i = 1, #own do
    local order = string.match(own[i], '^%d+,%d+,%d+,%d+,(%d+)') or '0'
    if not useless(out, retry, busy, collapse, own[i], order)
      and not book(s, out, retry, busy, own[i], order, horizon, notice) then
      return true
    end
  end
  for i = 1, #first, 2 do
    local order = tonumber(first[i + 1])
    if upTo >= 0 and order > upTo and order ~= stray then
      out[5] = order
      return true
    end
    if not useless(out, lane, busy, collapse, first[i], first[i + 1])
      and not book(s, out, lane, busy, first[i], first[i + 1], horizon, notice) then
      return true
    end
  end
  return true
end

-- damaged answers for a lane that can't be leased until somebody mends it.
local function damaged(key, lane)
  redis.call('ZADD', due, d(now + 5000000), key)
  return {-1, 0, size(lane) or 0, 5000000, 0}
end

-- hold makes ready what is leased, which is nothing for a new holder once it has taken back what the last one left. It answers
-- how many events are leased and how many wait; nil, and nothing has changed, if one of the sets is none.
local function hold(token, lane, busy, retry, bare)
  if bare then return 0, size(lane) end
  local waiting, leased = backlog(lane, retry), 0
  if token > 0 then leased = size(busy) end
  if not waiting or not leased then return nil end
  local before = moved
  if token == 0 and not give(busy, lane) then return nil end
  return leased, waiting + moved - before
end

-- keep notes the lease, or ends it if it holds nothing, and answers what there is to know of the lane.
local function keep(s, out, key, token, leased, lane, retry, horizon, bare)
  local next = out[3] > 0 and look(s, L, now, min(lead, horizon), first(lane, retry, bare)) or -1
  if out[5] > 0 then next = max(next, 1000000) end -- who asked looks sooner
  if leased > 0 then
    s.token, s.til = token, now + ttl
    put(s, 'holder', holder)
    put(s, 'token', d(token))
    put(s, 'until', d(s.til))
    redis.call('ZADD', due, d(s.til), key)
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
  local leased, waiting = hold(token, lane, busy, retry, bare)
  if not leased or not waiting then return damaged(key, lane) end
  if token == 0 then token = max(now, s.token + 1) end
  refill(s, L, now, since)
  local out, before = {0, token, 0, 0, 0}, moved
  if not fill(s, out, lane, busy, retry, collapse, leased, tonumber(ARGV[e + 4]), horizon, tonumber(ARGV[e + 6]),
    tonumber(ARGV[e + 7]), tonumber(ARGV[e + 8]), bare) then
    tally(s)
    save(s, L, now)
    return damaged(key, lane)
  end
  out[3] = waiting + moved - before
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
    out = {3, 0, 0, -1, 0}
  elseif token == 0 and s.til > now and redis.call('HGET', KEYS[k], 'holder') ~= holder then
    out = {2, 0, size(lane) or 0, s.til - now, 0}
    redis.call('ZADD', due, d(s.til), key)
  elseif s.class ~= class then
    out = {4, 0, 0, 0, s.class}
  else
    out = grant(s, e + 1, key, token, lane, busy, retry, collapse)
  end
  reply[#reply + 1] = out
  e = e + 10
end
return reply
