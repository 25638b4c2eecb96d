-- reset forgets the limits of a key and what is known of its receiver, so that it is as new. Its lane, and the lease of
-- that, stay.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}  3 ratelimit:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 key
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, fields that were forgotten}
-- Invariant: no event is moved; what is damaged is forgotten, too.
--
-- cat base.lua common.lua reset.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' , ID 0 k
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local KEEP = {exp = true, opened = true, opening = true, openingExtra = true, extra = true, token = true, ['until'] = true}
local list, gone = redis.pcall('HGETALL', KEYS[3]), {}
if list.err then
  if not string.find(list.err, 'WRONGTYPE', 1, true) then return list end
  redis.call('DEL', KEYS[3])
  gone[1] = ''
else
  for i = 1, #list, 2 do
    local field, value = list[i], list[i + 1]
    local kept = field == 'class' or field == 'holder' or KEEP[field] and whole(value)
    if not kept then gone[#gone + 1] = field end
  end
  if #gone > 0 then redis.call('HDEL', KEYS[3], unpack(gone)) end
end
if redis.call('ZSCORE', KEYS[2], ARGV[3]) then redis.call('ZADD', KEYS[2], 'LT', d(now), ARGV[3]) end
return {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1'), #gone}
