-- park adds events, whose bodies are stored, to their lanes.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry, the events of a key: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, lead us: how long before its slot a lane is looked at,
--       then per entry: the place of its shard, from 1; key, its rule, its class (tier), sleep us (the receiver is away for so
--       long, 0: it isn't), what an attempt failed with ('': none did), number of events, and per event: member, order, counted
--       (1: reserve counted it), after us (own due time, 0: none)
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry:
--       events waiting (-1 damaged: some have no place now, and are found by whoever mends the lane), us until the lane's next
--       look (-1: whoever holds its lease looks), what those that wait cost beyond one token each, number of members that are to
--       be dropped, and each of them with the place of the event whose name it has, from 1}
-- Invariant: repeating a call changes nothing; an event that is leased stays leased; of those of one name that wait, all
--       but the newest are to be dropped.
--
-- cat base.lua common.lua waiting.lua park.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 100000 1 k 1 '' 0 '' 1 7 7 0 0
local all, a = rules()
local sinces, a, others = shards(a, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local lead = tonumber(ARGV[a])
local reply = begun(now, #sinces)

-- arrive notes that n of those that are on their way into the lane are there.
local function arrive(s, n, extra)
  n = min(n, s.opening)
  if n == 0 then return end
  s.opening = s.opening - n
  if s.opening == 0 then s.opened = 0 end
  put(s, 'opened', d(s.opened))
  put(s, 'opening', d(s.opening))
  if s.openingExtra > 0 then put(s, 'openingExtra', d(s.opening > 0 and max(0, s.openingExtra - extra) or 0)) end
end

-- What enters the lane together: orders and members, of one entry after another.
local entering, none = {}, {}

-- admit gives n events, whose arguments begin at e, their places, and answers which are to be dropped, each behind the place of
-- the event whose name it has; nil if some have no place since collapse is no hash. Most are plain: these enter together, and it
-- answers one of them if all are.
local function admit(e, n, leased, lane, busy, retry, collapse)
  local count, dropped, sound = 0, none, true
  for j = 1, n do
    local member, order, after = ARGV[e], ARGV[e + 1], tonumber(ARGV[e + 3])
    if leased == 0 or not redis.call('ZSCORE', busy, member) then
      local last = newest(collapse, member)
      if last == nil then
        sound = false
      elseif last or after > 0 or cost(member) > 1 then
        local over = enter(last, collapse, lane, retry, member, order, after > 0 and now + after or 0)
        if over then
          if dropped == none then dropped = {} end
          dropped[#dropped + 1] = j
          dropped[#dropped + 1] = over
        end
      else
        entering[count + 1], entering[count + 2] = order, member
        count = count + 2
      end
    end
    e = e + 4
  end
  if count > 0 then moved = moved + redis.call('ZADD', lane, unpack(entering, 1, count)) end
  return sound and dropped, count == 2 * n and entering[2]
end

-- announced answers how many of n events, whose arguments begin at e, reserve has counted, and what they cost beyond one token each.
local function announced(e, n)
  local count, extra = 0, 0
  for j = 1, n do
    if ARGV[e + 2] == '1' then count, extra = count + 1, extra + beyond(ARGV[e]) end
    e = e + 4
  end
  return count, extra
end

local e = a + 1
for k = 2 * #sinces + 1, #KEYS, 5 do
  local place, key, L, class, n = tonumber(ARGV[e]), ARGV[e + 1], all[ARGV[e + 2]], ARGV[e + 3], tonumber(ARGV[e + 6])
  local away, failure, args = tonumber(ARGV[e + 4]), ARGV[e + 5], e + 7
  local lane, busy, retry, collapse = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local s = load(L, KEYS[k])
  e = args + 4 * n

  local waiting, leased, own = sizes(lane, busy, retry)
  local before, ahead, dropped, plain = moved, waiting, nil, nil
  if waiting and leased and own then dropped, plain = admit(args, n, leased, lane, busy, retry, collapse) end
  waiting = dropped and waiting + own + moved - before or -1

  local next = 1000000
  if s and waiting >= 0 then
    refill(s, L, now, sinces[place])
    arrive(s, announced(args, n))
    tally(s)
    if away > 0 then sleep(s, now, away) end
    if failure ~= '' then blame(s, now, failure, tonumber(ARGV[e - 1])) end
    classify(s, class)
    save(s, L, now)
    if s.til > now then
      next = -1
    elseif plain and own == 0 and (ahead == 0 or s.extra == 0) then -- whichever is the first, it costs as much
      next = look(s, L, now, lead, plain)
    else
      next = look(s, L, now, lead, first(lane, retry, plain and own == 0))
    end
  else
    tallyUnread(KEYS[k], now)
  end
  if next >= 0 then redis.call('ZADD', KEYS[2 * place], 'LT', d(now + next), key) end
  reply[#reply + 1] = waiting
  reply[#reply + 1] = next
  reply[#reply + 1] = s and s.extra or 0
  reply[#reply + 1] = dropped and #dropped / 2 or 0
  for j = 1, dropped and #dropped or 0 do reply[#reply + 1] = dropped[j] end
end
return reply
