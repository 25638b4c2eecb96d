-- claim takes keys whose lanes are due and moves their next look a second ahead, so that no other worker takes them too.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 most keys
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, us until the next key is due (-1: none), keys...}
-- Invariant: a key whose lanes hold events stays in due.
--
-- cat base.lua common.lua claim.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' , ID 0 256
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local keys = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', d(now), 'LIMIT', '0', ARGV[3])
for i = 1, #keys do redis.call('ZADD', KEYS[2], d(now + 1000000), keys[i]) end
local first = redis.call('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
local reply = {0, now, 0, first[1] and max(0, tonumber(first[2]) - now) or -1}
if #keys > 0 then reply[3] = redis.call('HINCRBY', KEYS[1], 'n', '1') end
for i = 1, #keys do reply[#reply + 1] = keys[i] end
return reply
