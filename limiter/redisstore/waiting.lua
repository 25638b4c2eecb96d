-- Put behind common.lua before the scripts that move events of lanes.
--
-- The field extra is kept by those who put events into lane and retry, and take them out of it: insert and remove sum up what
-- changes of a key, tally writes it. What is leased has its tokens and is no part of it.
--
-- A key of another type than sluice writes is damaged, like a hash that isn't read: the first read of each key finds it, before
-- anything of the entry is written, and no other entry of the call feels it.

-- begun answers the beginning of the reply of a call that writes to so many shards.
local function begun(now, shards)
  local reply = {0, now}
  for i = 1, shards do reply[2 + i] = redis.call('HINCRBY', KEYS[2 * i - 1], 'n', '1') end
  return reply
end

-- typed says whether a call's answer is of the type that sluice writes. Any other error is none of the key's.
local function typed(answer)
  if type(answer) ~= 'table' or not answer.err then return true end
  if find(answer.err, 'WRONGTYPE', 1, true) then return false end
  error(answer.err)
end

-- size answers how many events are in a set, nil if it is no sorted set.
local function size(set)
  local n = redis.pcall('ZCARD', set)
  return typed(n) and n or nil
end

-- backlog answers how many events wait in lane and retry, nil if one of them is no sorted set.
local function backlog(lane, retry)
  local n, own = size(lane), size(retry)
  return n and own and n + own
end

-- sizes answers how many events are in lane, busy and retry, nil for one that is no sorted set. Mostly one of them exists or
-- none: whoever knows how many needn't ask the others.
local function sizes(lane, busy, retry)
  local sets = redis.call('EXISTS', lane, busy, retry)
  if sets == 0 then return 0, 0, 0 end
  local waiting, leased, own = size(lane), 0, 0
  if waiting ~= 0 then sets = sets - 1 end
  if sets > 0 then
    leased = size(busy)
    if leased ~= 0 then sets = sets - 1 end
  end
  if sets > 0 then own = size(retry) end
  return waiting, leased, own
end

-- first answers what look goes by. Mostly nothing is in retry: without is what a caller says who knows that.
local function first(lane, retry, without)
  local back = not without and redis.call('ZRANGE', retry, '0', '0', 'WITHSCORES')
  return redis.call('ZRANGE', lane, '0', '0')[1], back and back[1] and back
end

-- outlast lets a key whose state isn't read last for as long as events may wait, if it doesn't yet. One whose expiry can't be read
-- is damaged, and stays so.
local function outlast(key, now)
  local exp = whole(redis.call('HGET', key, 'exp'))
  if not exp or exp >= now + LANE_TTL then return end
  redis.call('HSET', key, 'exp', d(now + LANE_TTL))
  redis.call('PEXPIRE', key, d(LANE_TTL / 1000))
end

-- remember notes a class as classify does, for a key whose state isn't read. A damaged key has none.
local function remember(key, class, now)
  local was = redis.pcall('HGET', key, 'class')
  if type(was) == 'table' or (was or '') == class then return end
  redis.call('HSET', key, 'class', class)
  outlast(key, now)
end

local gained = 0 -- of the key at hand: what was put in less what was taken out, beyond one token each
local moved = 0  -- of all keys: how many were put in less how many were taken out

-- beyond answers the tokens that a member costs beyond one; one that is to be dropped takes none.
local function beyond(member)
  if not find(member, ',', 1, true) or find(member, '!', 1, true) then return 0 end
  return max(0, cost(member) - 1)
end

-- insert puts an event into lane or retry, remove takes one out and answers how many were there.
local function insert(set, score, member)
  if redis.call('ZADD', set, score, member) == 1 then gained, moved = gained + beyond(member), moved + 1 end
end

local function remove(set, member)
  local n = redis.call('ZREM', set, member)
  if n == 1 then gained, moved = gained - beyond(member), moved - 1 end
  return n
end

-- tally notes what the waiting events of the key cost, before its state is saved: all that were inserted and removed since the
-- last tally are its own. Of an empty lane that is nothing, whatever was noted before.
local function tally(s, empty)
  local extra = empty and 0 or max(0, s.extra + gained)
  gained = 0
  if extra == s.extra then return end
  s.extra, s.over = extra, s.over or extra == 0
  if extra > 0 then put(s, 'extra', d(extra)) else redis.call('HDEL', s.key, 'extra') end
end

-- tallyUnread is tally for a key whose state isn't read. That of one that is no hash is found by whoever mends it.
local function tallyUnread(key, now)
  local by = gained
  gained = 0
  if by == 0 then return end
  local extra = redis.pcall('HINCRBY', key, 'extra', d(by))
  if type(extra) ~= 'number' then return end
  if extra > 0 then outlast(key, now) else redis.call('HDEL', key, 'extra') end
end

-- Sequences of streams, in digits: more than a number holds.

local WIDE = '^' .. string.rep('%d', 40)

-- wide says whether a member begins with its order.
local function wide(member) return #member >= 40 and find(member, WIDE) ~= nil end

-- sequence answers whether digits are a sequence.
local function sequence(s)
  return #s <= 20 and find(s, '^%d+$') and (#s < 20 or s <= '18446744073709551615')
end

-- after says whether a comes after b.
local function after(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- place answers a full member's place in the source.
local function place(member) return match(member, '^%d+,%d+,%d+,%d+,(%d+)') or '0' end

-- stands answers the place in the source of a member with that score: what a score holds is as good as another place that the
-- member names. Versions before wide members have rounded the others.
local function stands(member, score)
  if wide(member) then return match(string.sub(member, 1, 20), '^0*(%d+)') end
  if tonumber(score) <= EXACT then return score end
  local named = place(member)
  return named ~= '0' and named or format('%.0f', tonumber(score))
end

-- proper answers a member as it is written for that score.
local function proper(member, score)
  if tonumber(score) <= EXACT or wide(member) then return member end
  local order, seq, rest = stands(member, score), match(member, '^(%d+)(.*)$')
  if rest == '' then rest = ',0,1,0,' .. order .. ',0' end
  return string.rep('0', 20 - #order) .. order .. string.rep('0', 20 - #seq) .. seq .. rest
end

-- stored answers the sequence of a member's body; nil for what is no member.
local function stored(member)
  if wide(member) then return match(string.sub(member, 21, 40), '^0*(%d+)') end
  return match(member, '^%d+')
end

-- readable answers how many fields a member has, if it and its score are what sluice writes, and else nil; how a name, the
-- seventh, is written only its reader can tell.
local function readable(member, score)
  local x, long = tonumber(score or '0'), wide(member)
  if not x or x % 1 ~= 0 or x < 0 or x >= 2 ^ 64 and not long then return nil end
  if not find(member, ',', 1, true) then return sequence(member) and 1 end
  local n = 0
  for field in string.gmatch(member .. ',', '([^,]*),') do
    n = n + 1
    if n == 1 and long then
      if #field > 40 or not sequence(stands(member, '0')) or not sequence(stored(member)) then return nil end
    elseif n == 1 or n == 5 then
      if not sequence(field) or n == 5 and long and field ~= stands(member, '0') then return nil end
    elseif n < 7 and not (find(field, '^%d+$') and whole(field)) then
      return nil
    end
  end
  return n
end

-- give moves everything leased back into the lane; it answers false, and has moved nothing, if busy is no sorted set.
local function give(busy, lane)
  local b = redis.pcall('ZRANGE', busy, '0', '-1', 'WITHSCORES')
  if not typed(b) then return false end
  for i = 1, #b, 2 do insert(lane, b[i + 1], b[i]) end
  if #b > 0 then redis.call('DEL', busy) end
  return true
end

-- free ends the lease of s.
local function free(s)
  if s.token ~= 0 or s.til ~= 0 then
    redis.call('HDEL', s.key, 'holder', 'token', 'until')
    s.token, s.til = 0, 0
  end
end

-- sleep closes the key because its receiver is away.
local function sleep(s, now, us)
  s.closedUntil, s.fails = max(s.closedUntil, now + us), s.fails + 1
  put(s, 'closedUntil', d(s.closedUntil))
  put(s, 'fails', d(s.fails))
end

-- blame notes what a failed attempt has said, until the next one can be in us.
local function blame(s, now, text, us)
  s.failure, s.kept = text, max(s.kept, now + us)
  put(s, 'failure', text)
end

-- name answers what a member collapses under, nil for nothing and for one that is to be dropped.
local function name(member)
  return find(member, ',', 1, true) and match(member, '^%d+,%d+,%d+,%d+,%d+,%d+,([^!].*)$') or nil
end

-- over answers a named member as one that is to be dropped.
local function over(member) return (string.gsub(member, ',([^,]+)$', ',!%1')) end

-- newest answers the newest member of a member's name: '' if there is none, false without a name, nil if collapse is no hash.
local function newest(collapse, member)
  local n = name(member)
  if not n then return false end
  local last = redis.pcall('HGET', collapse, n)
  if not typed(last) then return nil end
  return last or ''
end

-- superseded says whether a newer event of a member's name is there. That collapse is a hash is known.
local function superseded(collapse, member)
  local last = newest(collapse, member)
  return last and after(place(last), place(member))
end

-- enter puts an event into its lane, or with its own due time into retry. Of those of one name only the newest waits: an older
-- one, be it this one or the one before, goes to retry, to be dropped. It answers that one, if there is any. last is the newest.
local function enter(last, collapse, lane, retry, member, order, due)
  local dropped
  if last then
    if after(place(last), place(member)) then
      dropped = over(member)
      insert(retry, '0', dropped)
      return dropped
    end
    if last ~= '' and after(place(member), place(last)) and remove(lane, last) + remove(retry, last) > 0 then
      dropped = over(last)
      insert(retry, '0', dropped)
    end
    redis.call('HSET', collapse, name(member), member)
  end
  if due > 0 then insert(retry, d(due), member) else insert(lane, order, member) end
  return dropped
end

-- leave forgets a settled event as the newest of its name, which is last.
local function leave(last, collapse, member)
  if last and place(last) == place(member) then redis.call('HDEL', collapse, name(member)) end
end
