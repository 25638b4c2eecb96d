package pipeline_test

import (
	"fmt"

	"sluice/pipeline"
)

// A key may be put together from parts; the first alternative that an event has wins.
func ExampleParseKeySpec() {
	spec, err := pipeline.ParseKeySpec("header:Tenant+json:user.id, subject:2")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, ev := range []*pipeline.Event{
		{Subject: "events.alice", Header: pipeline.Header{"Tenant": {"acme"}}, Data: []byte(`{"user": {"id": 17}}`)},
		{Subject: "events.bob", Data: []byte(`{}`)},
		{Subject: "events"},
	} {
		key, err := spec.Key(ev)
		fmt.Printf("%q %t\n", key, err == nil)
	}
	// Output:
	// "acme+17" true
	// "bob" true
	// "" false
}
