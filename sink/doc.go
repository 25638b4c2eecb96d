// Package sink holds the receivers that events can be pushed to.
//
// [Webhook] posts each event to an HTTP endpoint, signed after the Standard Webhooks specification. [Log] writes each
// event as a line of JSON, for trying out and for demonstrations. Both implement pipeline.Sink: a push that returns nil
// is delivered, and the marks of pipeline.Permanent, pipeline.Unavailable and pipeline.RetryAfter say how the event
// goes on otherwise. [Class] sorts what a push returned into the few classes that metrics count.
//
// Texts of errors go into logs and dead letters. They name the receiver's host, and never a signing secret, the user or
// query of the URL, or the event's key.
package sink
