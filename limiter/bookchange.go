package limiter

import (
	"maps"
	"slices"
)

// draftTables are tables in the making: what they don't change they share with those before.
type draftTables struct {
	tables
	tiersOwn, patternsOwn bool // the maps may be written to
}

// put makes a change of anything but a key. before gives rulings that stay the same.
func (b *Book) put(d *draftTables, before *tables, c Change) {
	switch c.Place.Source {
	case SourceAll:
		d.all = nil
		if c.Rule.Paused {
			d.all = b.brake
		}
	case SourceDefault:
		if d.standard = keep(c, before.standard); d.standard == nil {
			d.standard = b.base
		}
	case SourceTier:
		if !d.tiersOwn {
			d.tiers, d.tiersOwn = maps.Clone(d.tiers), true
		}
		d.tiers = putRuling(d.tiers, c, before.tiers)
	case SourcePattern:
		if !d.patternsOwn {
			d.patterns.byText, d.patternsOwn = maps.Clone(d.patterns.byText), true
		}
		d.patterns.byText = putRuling(d.patterns.byText, c, before.patterns.byText)
	}
}

func putRuling(to map[string]*Ruling, c Change, before map[string]*Ruling) map[string]*Ruling {
	r := keep(c, before[c.Place.Name])
	if r == nil {
		delete(to, c.Place.Name)
		return to
	}
	if to == nil {
		to = map[string]*Ruling{}
	}
	to[c.Place.Name] = r
	return to
}

// keep is the ruling that a change makes, the one before if that is the same, or nil if the rule says nothing.
func keep(c Change, before *Ruling) *Ruling {
	limits := c.Rule.Limits
	switch {
	case c.Rule.Paused:
		limits = Limits{{}}
	case limits == nil:
		return nil
	}
	if before != nil && before.Limits.Equal(limits) {
		return before
	}
	return &Ruling{Limits: limits, Source: c.Place.Source, Name: c.Place.Name}
}

// seal makes the tables ready to be asked, and says whether they differ from those before.
func (d *draftTables) seal(before *tables) (changed bool) {
	same := maps.Equal(d.patterns.byText, before.patterns.byText)
	if same {
		d.patterns = before.patterns
	} else {
		d.patterns = newPatterns(d.patterns.byText)
	}
	return !same || !maps.Equal(d.tiers, before.tiers) || d.all != before.all || d.standard != before.standard
}

// Draft is a whole new set of rules for a [Book], in the making.
type Draft struct {
	book   *Book
	tables draftTables
	before *tables
	shards [bookShards]map[string]*keyRule
	rules  map[ruleText]*keyRule
}

// Draft begins one without any rule.
func (b *Book) Draft() *Draft {
	d := &Draft{
		book: b, before: b.tables.Load(), rules: map[ruleText]*keyRule{},
		tables: draftTables{tables: tables{standard: b.base}, tiersOwn: true, patternsOwn: true},
	}
	for i := range d.shards {
		d.shards[i] = map[string]*keyRule{}
	}
	return d
}

// Set makes a change of the draft, if it is valid.
func (d *Draft) Set(c Change) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Place.Source != SourceKey {
		d.book.put(&d.tables, d.before, c)
		return nil
	}
	d.book.change.RLock()
	rule := d.book.ruleOf(d.rules, c.Rule)
	d.book.change.RUnlock()
	part := bookShard{keys: d.shards[d.book.shardOf(c.Place.Name)]}
	part.set(c.Place.Name, rule)
	return nil
}

// Replace makes a draft of this book rule instead of all that was said before. The draft must not be used afterwards.
func (b *Book) Replace(d *Draft) {
	b.change.Lock()
	now := b.tables.Load()
	told := d.tables.seal(now)
	var was [bookShards]map[string]*keyRule
	for i := range b.shards {
		b.shards[i].mu.Lock()
		was[i], b.shards[i].keys = b.shards[i].keys, d.shards[i]
		b.shards[i].mu.Unlock()
	}
	told = told || !slices.EqualFunc(was[:], d.shards[:], maps.Equal[map[string]*keyRule, map[string]*keyRule])
	var affected func(string) bool
	if told {
		affected = b.write(&journal{tables: now, whole: &was}, &d.tables.tables)
	}
	b.tables.Store(&d.tables.tables)
	b.rules, b.sweepAt = d.rules, 2*len(d.rules)
	fns := b.fns
	b.change.Unlock()
	for _, fn := range fns {
		if told {
			fn(affected)
		}
	}
}

// Subscribe calls fn after each change with what tells the keys whose limits it changed. A key is told, too, if only its events
// that name a certain tier are concerned. What affected says stays right whatever changes later; it may be called at any time,
// from any goroutine. fn must not block, and not change the book.
func (b *Book) Subscribe(fn func(affected func(key string) bool)) {
	b.change.Lock()
	defer b.change.Unlock()
	b.fns = append(b.fns[:len(b.fns):len(b.fns)], fn)
}

// journal is what a change replaced.
type journal struct {
	tables *tables
	keys   map[string]*keyRule              // rules that were replaced, nil where there was none
	whole  *[bookShards]map[string]*keyRule // all rules were replaced
	after  *link
}

// link leads to what the next change replaced. Journals are kept by those before them that somebody still looks at, and by nothing
// else.
type link struct{ next *journal }

// write appends what the change that is being made replaced, and returns what it affects.
func (b *Book) write(j *journal, now *tables) func(key string) bool {
	j.after = &link{}
	b.last.next, b.last = j, j.after
	tiers := slices.AppendSeq(slices.Collect(maps.Keys(j.tables.tiers)), maps.Keys(now.tiers))
	return func(key string) bool {
		b.change.RLock()
		defer b.change.RUnlock()
		oldRule, oldTables := b.at(j, key)
		newRule, newTables := b.at(j.after.next, key)
		differs := func(tier string) bool {
			return !oldTables.resolve(key, oldRule, tier).Limits.Equal(newTables.resolve(key, newRule, tier).Limits)
		}
		return differs("") || slices.ContainsFunc(tiers, differs)
	}
}

// at is what ruled key before the change of j; nil: now. The mutex is held.
func (b *Book) at(j *journal, key string) (*keyRule, *tables) {
	t := b.tables.Load()
	if j != nil {
		t = j.tables
	}
	for ; j != nil; j = j.after.next {
		if j.whole != nil {
			return j.whole[b.shardOf(key)][key], t
		}
		if rule, ok := j.keys[key]; ok {
			return rule, t
		}
	}
	return b.of(key), t
}
