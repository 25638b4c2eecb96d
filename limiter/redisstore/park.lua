-- park adds events, whose bodies are stored, to their lanes.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then per event: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       lead us: how long before its slot a lane is looked at
--       then per event: key, its rule, its class (tier), member, order, counted (1: reserve counted it), after us (own due time, 0: none),
--       sleep us (the receiver is away for so long, 0: it isn't), what its attempt failed with ('': none did)
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, then per event: events waiting (-1 damaged: it
--       has no place now, and is found by whoever mends the lane), us until the
--       lane's next look (-1: whoever holds its lease looks), what those that wait cost beyond one token each, the member of its name that is to be dropped ('': none)}
-- Invariant: repeating a call changes nothing; an event that is leased stays leased; of those of one name that wait, all
--       but the newest are to be dropped.
--
-- cat base.lua common.lua waiting.lua park.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 100000 k 1 '' 7 7 0 0 0 ''
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local lead = tonumber(ARGV[a])
local reply = {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1')}

-- arrive notes that one of those that are on their way into the lane is there.
local function arrive(s, extra)
  s.opening = s.opening - 1
  if s.opening == 0 then s.opened = 0 end
  put(s, 'opened', d(s.opened))
  put(s, 'opening', d(s.opening))
  if s.openingExtra > 0 then put(s, 'openingExtra', d(s.opening > 0 and max(0, s.openingExtra - extra) or 0)) end
end

for i = 0, (#KEYS - 2) / 5 - 1 do
  local e = a + 1 + 9 * i
  local key, L, member, order = ARGV[e], all[ARGV[e + 1]], ARGV[e + 3], ARGV[e + 4]
  local counted, after, away = ARGV[e + 5] == '1', tonumber(ARGV[e + 6]), tonumber(ARGV[e + 7])
  local lane, busy, retry, collapse = KEYS[5 * i + 4], KEYS[5 * i + 5], KEYS[5 * i + 6], KEYS[5 * i + 7]
  local s = load(L, KEYS[5 * i + 3])

  local waiting, last = backlog(lane, retry), newest(collapse, member)
  local leased = redis.pcall('ZSCORE', busy, member)
  local sound = waiting and last ~= nil and typed(leased)

  local dropped
  if sound and not leased then
    local before = moved
    dropped = enter(last, collapse, lane, retry, member, order, after > 0 and now + after or 0)
    waiting = waiting + moved - before
  end

  local next = 1000000
  if not sound then
    waiting = -1
  elseif s then
    refill(s, L, now, since)
    if counted and s.opening > 0 then arrive(s, beyond(member)) end
    tally(s)
    if away > 0 then sleep(s, now, away) end
    if ARGV[e + 8] ~= '' then blame(s, now, ARGV[e + 8], after) end
    classify(s, ARGV[e + 2])
    save(s, L, now)
    next = s.til > now and -1 or look(s, L, now, lead, lane, retry)
  else
    tallyUnread(KEYS[5 * i + 3], now)
  end
  if next >= 0 then redis.call('ZADD', KEYS[2], 'LT', d(now + next), key) end
  reply[#reply + 1] = waiting
  reply[#reply + 1] = next
  reply[#reply + 1] = s and s.extra or 0
  reply[#reply + 1] = dropped or ''
end
return reply
