-- rearm lets lanes be looked at now that were to be looked at later, and reads which others there are.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 time from which on keys are read  4 how many of that time are left out
--       5 most keys to be read, then the keys that are to be looked at now
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, how many keys were moved, then the keys that are
--       due later than a second from now and not before the time asked for, each with its time, in that order}
-- Invariant: nothing is moved later, and nothing that is due within a second, which needs no help; repeating a call changes
--       nothing.
--
-- cat base.lua common.lua rearm.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' , ID 0 0 0 256 k
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local from, skip = tonumber(ARGV[3]), tonumber(ARGV[4])
local soon = now + HORIZON
local reply = {0, now, 0, 0}
for i = 6, #ARGV do
  local at = redis.call('ZSCORE', KEYS[2], ARGV[i])
  if at and tonumber(at) > soon then
    redis.call('ZADD', KEYS[2], d(now), ARGV[i])
    reply[4] = reply[4] + 1
  end
end
if reply[4] > 0 then reply[3] = redis.call('HINCRBY', KEYS[1], 'n', '1') end
if soon >= from then from, skip = soon + 1, 0 end
local later = redis.call('ZRANGEBYSCORE', KEYS[2], d(from), '+inf', 'WITHSCORES', 'LIMIT', d(skip), ARGV[5])
for i = 1, #later do reply[#reply + 1] = later[i] end
return reply
