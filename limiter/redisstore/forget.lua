-- forget takes events that were to be dropped, and whose bodies are deleted, out of the index.
--
-- KEYS  1 epoch:{tag}; then per event: retry:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock), then per event: member, as park answered it
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, then per event: 1 (it was there) or 0 (it was
--       not, or is leased: whoever holds the lease drops it)}
-- Invariant: only an event that is to be dropped is forgotten, and none of a retry that is no sorted set.
--
-- cat base.lua common.lua waiting.lua forget.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'retry:{s03}:k' , ID 0 7,0,1,0,7,0,!position
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local reply = {0, clock(tonumber(ARGV[2])), redis.call('HINCRBY', KEYS[1], 'n', '1')}
for i = 2, #KEYS do
  local gone = string.find(ARGV[i + 1], ',!', 1, true) and redis.pcall('ZREM', KEYS[i], ARGV[i + 1]) or 0
  reply[#reply + 1] = typed(gone) and gone or 0
end
return reply
