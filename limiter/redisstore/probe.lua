-- probe tries every command that the other scripts use on keys of its own, which are gone afterwards, and answers those that
-- this user may not use.
--
-- KEYS  1 a hash  2 a sorted set, both in the slot of one shard and new
-- ARGV  none
-- reply {0, then per command that failed: its name}
-- Invariant: nothing but the two keys is touched, and they are gone at the end.
--
-- cat base.lua common.lua probe.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'ratelimit:{s00}:probe' 'lane:{s00}:probe'
local hash, set = KEYS[1], KEYS[2]
local denied = {}

local function saw(name, answer)
  if type(answer) == 'table' and answer.err then denied[#denied + 1] = name end
end

saw('TIME', redis.pcall('TIME'))
saw('HINCRBY', redis.pcall('HINCRBY', hash, 'n', '1'))
saw('HSET', redis.pcall('HSET', hash, 'a', '1', 'b', '2'))
saw('HGET', redis.pcall('HGET', hash, 'a'))
saw('HGETALL', redis.pcall('HGETALL', hash))
saw('HMGET', redis.pcall('HMGET', hash, 'a', 'b'))
saw('PEXPIRE', redis.pcall('PEXPIRE', hash, '10000'))
saw('HDEL', redis.pcall('HDEL', hash, 'a', 'b', 'n'))
saw('ZADD', redis.pcall('ZADD', set, '1', 'a'))
saw('ZSCORE', redis.pcall('ZSCORE', set, 'a'))
saw('ZCARD', redis.pcall('ZCARD', set))
saw('ZCOUNT', redis.pcall('ZCOUNT', set, '-inf', '1'))
saw('ZRANGE', redis.pcall('ZRANGE', set, '0', '0'))
saw('ZRANGEBYSCORE', redis.pcall('ZRANGEBYSCORE', set, '-inf', '1'))
saw('ZREM', redis.pcall('ZREM', set, 'a'))
saw('EXISTS', redis.pcall('EXISTS', hash, set))
saw('DEL', redis.pcall('DEL', hash))
saw('UNLINK', redis.pcall('UNLINK', hash, set))
return {0, unpack(denied)}
