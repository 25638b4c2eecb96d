package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"sluice/pipeline/stream"
)

// checkWorkers looks at the live workers and at the rules that they follow.
func checkWorkers(ctx context.Context, cfg Config, f *findings) {
	const about = "workers"
	nc, err := stream.Dial(ctx, cfg.stream(), func(error) {})
	if err != nil {
		return // told by checkNATS
	}
	defer nc.Close()
	checkRules(ctx, nc, cfg.stream(), f)
	roll, err := callRoll(ctx, nc, cfg.stream())
	switch {
	case err != nil:
		f.add(warning, about, "can't be heard: "+reason(err), "permit to subscribe to "+cfg.Name+".worker, as a worker does")
		return
	case len(roll.workers) == 0:
		f.add(fine, about, "none is live", "")
		return
	}
	trouble := roll.disagreements()
	for _, d := range trouble {
		f.add(d.level, about, d.String(), d.remedy)
	}
	if len(trouble) == 0 {
		f.add(fine, about, roll.agreement(), "")
	}
}

// maxBadRules is how many rules that can't be understood are told one by one.
const maxBadRules = 10

// checkRules tells which rules of limits no worker can understand.
func checkRules(ctx context.Context, nc *nats.Conn, sc stream.Config, f *findings) {
	const about = "limits"
	js, err := sc.JetStream(nc)
	if err != nil {
		return // told by checkNATS
	}
	bucket, err := stream.OpenLimitBucket(ctx, js, sc)
	if err != nil {
		return // told as an object
	}
	rules, err := bucket.All(ctx)
	if err != nil {
		f.add(fault, about, reason(err), "workers go on with what they know, and new ones have SLUICE_LIMIT only")
		return
	}
	said, bad := 0, 0
	for _, r := range rules {
		switch {
		case r.Fault == nil && !r.Removed:
			said++
		case r.Fault != nil:
			if bad++; bad <= maxBadRules {
				f.add(warning, about, fmt.Sprintf("%s can't be understood: %s", visible(r.Key), visible(r.Fault.Error())),
					"the last good one rules there, if any: set it anew, or take it back, by 'sluice limits set' or 'rm'")
			}
		}
	}
	if bad > maxBadRules {
		f.add(warning, about, fmt.Sprintf("%d more can't be understood", bad-maxBadRules), "'sluice limits ls' lists them")
	}
	if bad == 0 {
		f.add(fine, about, count(int64(said), "rule")+", all understood", "")
	}
}
