package sink

import (
	"bytes"
	"strings"

	"github.com/tidwall/gjson"

	"sluice/pipeline"
)

// A CloudEvent in NATS is in binary mode, with its attributes as ce- headers, or in structured mode, with the whole event as data
// in JSON; the latter has no header that says so. HTTP has the same two modes, but tells them apart by Content-Type, has no header
// ce-datacontenttype since Content-Type is that, and percent-encodes what headers can't hold.

const (
	attributePrefix  = "Ce-"
	versionAttribute = attributePrefix + "Specversion"
	typeAttribute    = attributePrefix + "Datacontenttype"
)

// isAttribute says whether a header of that name holds an attribute that has a header in HTTP, too.
func isAttribute(name string) bool {
	return len(name) > len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix) && isToken(name) &&
		!strings.EqualFold(name, typeAttribute)
}

// EncodeAttribute is the value of a CloudEvent's attribute as a header holds it: percent-encoded but for visible ASCII without
// double quote and percent sign.
func EncodeAttribute(value string) string {
	return percentEncodeAlso(strings.ToValidUTF8(value, "\uFFFD"), `"`)
}

// attributeValue translates the value of a ce- header of NATS. Some writers encode it there already, others, like the SDK for Go,
// don't: it is taken for encoded if it can be.
func attributeValue(value string) string {
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '%' && i+2 < len(value) && isHex(value[i+1]) && isHex(value[i+2]):
		case c <= ' ' || c >= 0x7f || c == '"' || c == '%':
			return EncodeAttribute(value)
		}
	}
	return value
}

// isCloudEvent says whether the data, which are JSON, are a whole CloudEvent.
func isCloudEvent(ev *pipeline.Event) bool {
	if ev.Header.Get(versionAttribute) != "" || !bytes.Contains(ev.Data, []byte("specversion")) {
		return false
	}
	whole := gjson.ParseBytes(pipeline.WithoutMark(ev.Data))
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if v := whole.Get(name); v.Type != gjson.String || v.Str == "" {
			return false
		}
	}
	return whole.IsObject()
}
