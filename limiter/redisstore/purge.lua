-- purge leases the next events of a lane to somebody who deletes them: due or not, without slots and whatever holds the key
-- up. While a worker holds the lane it gets no more events, so that it gives the lane back.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}  3 ratelimit  4 lane  5 busy  6 retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then key, its rule, holder, lease us, token of
--       the lease held (0: a new one), most events, us for which a worker that holds the lane gets no more
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, code (0 asked, 2 held by another, 3 the lease
--       has passed to another, -1 damaged: nothing was changed), token (0: not granted), events waiting before, holder of the lease
--       before, then per event: member, order}
-- Invariant: an event is leased to one at a time; limits, and what is kept of the receiver's failures, stay as they are.
--
-- cat base.lua common.lua waiting.lua purge.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 k 1 me 5000000 0 10 1000000
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local key, L, me, ttl = ARGV[a], all[ARGV[a + 1]], ARGV[a + 2], tonumber(ARGV[a + 3])
local token, most, pause = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
local lane, busy, retry = KEYS[4], KEYS[5], KEYS[6]
local s, waiting = load(L, KEYS[3]), backlog(lane, retry)
if not s or not waiting or not size(busy) then return {0, now, 0, -1, 0, 0, ''} end
local reply = {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1'), 0, 0, waiting,
  redis.call('HGET', KEYS[3], 'holder') or ''}
refill(s, L, now, since)

local function lease(member, order)
  remove(lane, member)
  remove(retry, member)
  member = proper(member, order)
  redis.call('ZADD', busy, order, member)
  reply[#reply + 1] = member
  reply[#reply + 1] = order
end

if token > 0 and s.token ~= token then
  reply[4] = 3
elseif token == 0 and s.til > now and reply[7] ~= me then
  reply[4] = 2
  s.closedUntil = max(s.closedUntil, now + pause)
  put(s, 'closedUntil', d(s.closedUntil))
  save(s, L, now)
else
  if token == 0 then
    give(busy, lane)
    token = max(now, s.token + 1)
    reply[6] = redis.call('ZCARD', lane) + redis.call('ZCARD', retry)
  end
  local first = redis.call('ZRANGE', lane, '0', d(most - 1), 'WITHSCORES')
  for i = 1, #first, 2 do lease(first[i], first[i + 1]) end
  if #first / 2 < most then
    local own = redis.call('ZRANGE', retry, '0', d(most - #first / 2 - 1))
    for i = 1, #own do lease(own[i], place(own[i])) end
  end
  if redis.call('EXISTS', busy) == 1 then
    s.token, s.til = token, now + ttl
    put(s, 'holder', me)
    put(s, 'token', d(token))
    put(s, 'until', d(s.til))
    redis.call('ZADD', KEYS[2], d(s.til), key)
    reply[5] = token
  else
    free(s)
    redis.call('ZREM', KEYS[2], key)
    classify(s, '')
  end
  tally(s, redis.call('EXISTS', lane, retry) == 0)
  save(s, L, now)
end
return reply
