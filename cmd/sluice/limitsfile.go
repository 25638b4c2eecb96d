package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice/limiter"
	"sluice/pipeline/stream"
)

// fileRule is what a file says of a place.
type fileRule struct {
	place   limiter.Place
	rule    limiter.Rule
	paused  bool    // whether it is paused is stated
	comment *string // nil: none is stated
	line    int
}

// ruleFile is a file of limits as it is read: with all faults, each with its line and field.
type ruleFile struct {
	rules  []fileRule
	faults []string
}

// sections are the fields of a file.
var sections = map[string]limiter.RulingSource{
	"default": limiter.SourceDefault, "tiers": limiter.SourceTier, "patterns": limiter.SourcePattern, "keys": limiter.SourceKey,
}

// readRuleFile reads YAML (or JSON).
func readRuleFile(in io.Reader) ([]fileRule, error) {
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("reading limits: %w", err)
	}
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading limits: %w", err)
	}
	var f ruleFile
	if doc.Kind == yaml.DocumentNode {
		f.document(doc.Content[0])
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		f.faults = append(f.faults, "more than one document; write all limits into one")
	}
	if len(f.faults) > 0 {
		return nil, errors.New(strings.Join(f.faults, "\n"))
	}
	return f.rules, nil
}

func (f *ruleFile) fault(n *yaml.Node, field, format string, args ...any) {
	f.faults = append(f.faults, fmt.Sprintf("line %d: %s: %s", n.Line, field, fmt.Sprintf(format, args...)))
}

func (f *ruleFile) document(root *yaml.Node) {
	root = plainNode(root)
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return
	}
	f.fields(root, "the file", func(name string, key, value *yaml.Node) {
		source, known := sections[name]
		switch {
		case !known:
			f.fault(key, name, "is not known; use default, tiers, patterns and keys")
		case source == limiter.SourceDefault:
			f.rule(limiter.Place{Source: source}, "default", value)
		case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		default:
			f.fields(value, name, func(n string, key, value *yaml.Node) {
				place := limiter.Place{Source: source, Name: n}
				field := name + "." + visible(n)
				if err := place.Validate(); err != nil {
					f.fault(key, field, "%s", err)
					return
				}
				f.rule(place, field, value)
			})
		}
	})
}

// plainNode is a node, or what its alias stands for.
func plainNode(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// fields calls fn with the fields of a mapping, each but once.
func (f *ruleFile) fields(n *yaml.Node, field string, fn func(name string, key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		f.fault(n, field, "is not a mapping; write NAME: VALUE lines")
		return
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := plainNode(n.Content[i]), plainNode(n.Content[i+1])
		var name string
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			f.fault(n.Content[i], field, "a name is a plain text")
			continue
		}
		name = key.Value
		if key.Tag == "!!binary" {
			if err := key.Decode(&name); err != nil {
				f.fault(key, field, "a name is not base64")
				continue
			}
		}
		if line, twice := lines[name]; twice {
			f.fault(key, field, "%s stands there twice; first in line %d", visible(name), line)
			continue
		}
		lines[name] = key.Line
		fn(name, key, value)
	}
}

// rule reads what is said of a place: a text, or a mapping.
func (f *ruleFile) rule(place limiter.Place, field string, n *yaml.Node) {
	r := fileRule{place: place, line: n.Line}
	faults := len(f.faults)
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		var err error
		if r.rule, err = parseRule(n.Value); err != nil {
			f.fault(n, field, "%s", err)
		}
	} else {
		f.fields(n, field, func(name string, key, value *yaml.Node) { f.term(&r, name, field+"."+visible(name), key, value) })
	}
	if len(f.faults) > faults {
		return
	}
	if r.rule.None() && !r.paused {
		f.fault(n, field, "says nothing; write limits, a tier or paused")
		return
	}
	if err := r.rule.Validate(place); err != nil {
		f.fault(n, field, "%s", err)
		return
	}
	f.rules = append(f.rules, r)
}

// term reads a field of a rule.
func (f *ruleFile) term(r *fileRule, name, field string, key, value *yaml.Node) {
	if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
		f.fault(value, field, "is not a text")
		return
	}
	var err error
	switch name {
	case "limits":
		r.rule.Limits, err = limiter.ParseLimits(value.Value)
	case "tier":
		if r.rule.Tier = value.Value; value.Value == "" {
			err = errors.New("names no tier")
		}
	case "comment":
		r.comment = &value.Value
	case "paused":
		r.paused = true
		if err = value.Decode(&r.rule.Paused); err != nil {
			err = errors.New("is neither true nor false")
		}
	default:
		f.fault(key, field, "is not known; use limits, tier, paused and comment")
	}
	if err != nil {
		f.fault(value, field, "%s", err)
	}
}

// writeRuleFile writes rules as a file that apply takes.
func writeRuleFile(out io.Writer, rules []stream.StoredRule) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range []struct {
		name   string
		source limiter.RulingSource
	}{{"default", limiter.SourceDefault}, {"tiers", limiter.SourceTier}, {"patterns", limiter.SourcePattern}, {"keys", limiter.SourceKey}} {
		list := &yaml.Node{Kind: yaml.MappingNode}
		for _, r := range rules {
			if r.Place.Source != s.source {
				continue
			}
			if s.source == limiter.SourceDefault {
				list = ruleNode(r)
				break
			}
			list.Content = append(list.Content, textNode(r.Place.Name), ruleNode(r))
		}
		if len(list.Content) > 0 || list.Kind == yaml.ScalarNode {
			root.Content = append(root.Content, textNode(s.name), list)
		}
	}
	if len(root.Content) == 0 {
		return nil
	}
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("writing limits: %w", err)
	}
	return enc.Close()
}

// ruleNode is a text if that says all.
func ruleNode(r stream.StoredRule) *yaml.Node {
	if r.Comment == "" && !r.Rule.Paused {
		return textNode(r.Rule.String())
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	add := func(name string, value *yaml.Node) { n.Content = append(n.Content, textNode(name), value) }
	if r.Rule.Limits != nil {
		add("limits", textNode(r.Rule.Limits.String()))
	}
	if r.Rule.Tier != "" {
		add("tier", textNode(r.Rule.Tier))
	}
	if r.Rule.Paused {
		add("paused", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
	}
	if r.Comment != "" {
		add("comment", textNode(r.Comment))
	}
	return n
}

func textNode(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}
