-- reserve takes tokens for new events, now or at a slot within the horizon, or says that they have to wait.
--
-- KEYS  1 epoch:{tag}, then those of further shards, which only a single Redis may have in one call; then per entry:
--       ratelimit lane busy retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, most events of a key that wait (-1: any), then per entry: the
--       place of its shard, from 1; its rule; n, the number of events; cost, the tokens of each; horizon us (-1: grant
--       nothing)
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, calls, then per further shard:
--       calls, then per entry {code (0 by the limits, 1 others wait ahead, 2 cooling, 3 paused, -1 damaged), granted now, to be
--       parked, us until one more could go (-1: unknown), events ahead, tokens and rest before of the limit with the fewest, that
--       limit's place from 0, what the events ahead cost beyond one token each, then in how many us each promised slot is}};
--       what is neither granted, promised nor parked would wait too long
-- Invariant: pushes at granted times never exceed any limit; a refusal leaves the limits as they were; a key that is told
--       to park is open for 2 s, so that newer events can't pass before the lane's index is written.
--
-- cat base.lua common.lua reserve.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 -1 1 1 1 1 1000000
local all, a = rules()
local sinces, a, others = shards(a, 1)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local maxWaiting, count, wrote = tonumber(ARGV[a]), #sinces, {}
local L, since, place -- of the entry
local reply = {0, now}

-- grant takes the tokens of as many of n events as the horizon allows, and answers how many go now; slots are put to out.
local function grant(s, out, n, price, horizon)
  if horizon < 0 then return 0 end
  if L.mode == 2 then return n end
  local g = fits(s, L, now, n, price)
  if g > 0 then charge(s, L, now, now, g * price) end
  for _ = g + 1, n do
    local at = earliest(s, L, now, price)
    if at > now + horizon then break end
    charge(s, L, now, at, price)
    out[#out + 1] = at - now
  end
  return g
end

-- room answers how many more events may wait behind those whose cost is ahead without waiting too long.
local function room(s, n, price, ahead)
  for i = 1, #L do
    local c = L[i]
    if c.maxWait >= 0 then n = min(n, floor((left(c, s[i], now) + c.maxWait - ahead) / price)) end
  end
  return max(0, n)
end

-- scarcest answers the whole tokens and the rest of the limit that has the fewest now, and that limit's place from 0.
local function scarcest(s)
  local tokens, rest, place = 0, 0, 0
  for i = 1, #L do
    local t, r = left(L[i], s[i], now)
    if L[i].kind == 3 and s[i].w * L[i].slice > now then t = min(t, 0) end
    if i == 1 or t < tokens then tokens, rest, place = t, r, i - 1 end
  end
  return tokens, rest, place
end

-- damaged answers for a key that isn't what sluice writes: all of its events are to be parked.
local function damaged(n) return {-1, 0, n, -1, 0, 0, 0, 0, 0} end

-- entry carries out one entry of the call.
local function entry(s, n, price, horizon, lane, busy, retry)
  refill(s, L, now, since)
  local tokens, rest, which = scarcest(s)
  local opening = s.opened > now and s.openingExtra or 0
  local ahead, leased, extra = s.opening, 0, opening
  if redis.call('EXISTS', lane, busy, retry) > 0 then
    local waiting, own = redis.pcall('ZCARD', lane), redis.pcall('ZCARD', retry)
    leased = redis.pcall('ZCARD', busy)
    if type(waiting) == 'table' or type(own) == 'table' or type(leased) == 'table' then return damaged(n) end
    waiting = waiting + own
    ahead = ahead + waiting
    if waiting > 0 then extra = extra + s.extra end
  end
  local out = {0, 0, 0, -1, ahead, tokens, rest, which, extra}
  if L.mode == 1 then out[1] = 3
  elseif s.closedUntil > now then out[1] = 2
  elseif ahead + leased > 0 then out[1] = 1
  else out[2] = grant(s, out, n, price, horizon) end

  local parked = n - out[2] - (#out - 9)
  if parked > 0 then
    if L.mode == 0 then out[4] = wait(s, L, now, price) end
    if out[1] < 2 then parked = room(s, parked, price, ahead + extra) end
    if maxWaiting >= 0 then parked = max(0, min(parked, maxWaiting - ahead)) end
  end
  if parked > 0 then
    out[3] = parked
    put(s, 'opened', d(now + 2000000))
    put(s, 'opening', d(s.opening + parked))
    opening = opening + parked * (price - 1)
    if opening ~= s.openingExtra then put(s, 'openingExtra', d(opening)) end
    s.opened = now + 2000000
  end
  if s.dirty or s.rebased or s.set then wrote[place] = true end
  save(s, L, now)
  return out
end

for i = 0, (#KEYS - count) / 4 - 1 do
  local e, k = a + 1 + 5 * i, count + 1 + 4 * i
  local n, price, horizon = tonumber(ARGV[e + 2]), tonumber(ARGV[e + 3]), tonumber(ARGV[e + 4])
  place = tonumber(ARGV[e])
  L, since = all[ARGV[e + 1]], sinces[place]
  local s = level(L, KEYS[k], now)
  reply[3 + count + i] = s and entry(s, n, price, horizon, KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]) or damaged(n)
end
for i = 1, count do reply[2 + i] = wrote[i] and redis.call('HINCRBY', KEYS[i], 'n', '1') or 0 end
return reply
