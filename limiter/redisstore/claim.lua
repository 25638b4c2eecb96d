-- claim takes keys whose lanes are due and moves their next look a second ahead, so that no other worker takes them too.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 number of further shards, the epoch id of each, most keys of a shard
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per shard: {us
--       until its next key is due (-1: none), keys...}}
-- Invariant: a key whose lanes hold events stays in due.
--
-- cat base.lua claim.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' , ID 0 0 256
local sinces, a, others = shards(3, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local shards, most, reply = #sinces, ARGV[a], {0, now}
for i = 1, shards do
  local due = KEYS[2 * i]
  local keys = redis.call('ZRANGEBYSCORE', due, '-inf', d(now), 'LIMIT', '0', most)
  if keys[1] then
    local later, taken = d(now + 1000000), {}
    for j = 1, #keys do taken[2 * j - 1], taken[2 * j] = later, keys[j] end
    redis.call('ZADD', due, unpack(taken))
  end
  local first = redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')
  table.insert(keys, 1, first[1] and max(0, tonumber(first[2]) - now) or -1)
  reply[2 + i] = keys[2] and redis.call('HINCRBY', KEYS[2 * i - 1], 'n', '1') or 0
  reply[2 + shards + i] = keys
end
return reply
