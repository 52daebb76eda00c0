package store

import (
	"strings"

	"github.com/onpath/onpath"
)

// Root is the prefix of all objects in a shared key space. Watchers see neither
// the counters behind NextIDs, nor records, nor the ids of requests.
const (
	Root      = "/onpath/"
	Sequences = "/onpath.sequences/"
	Records   = "/onpath.records/"
	Requests  = "/onpath.requests/"
)

// Path is the key of k in a flat key space: /onpath/<kind>/<tenant>/<name>, the
// tenant empty for operator-owned kinds.
func Path(k onpath.Key) string {
	return KindPath(k.Kind, "") + k.Tenant + "/" + k.Name
}

// KindPath is the prefix of all objects of a kind, or of one tenant's.
func KindPath(kind onpath.Kind, tenant string) string {
	p := Root + strings.ToLower(string(kind)) + "/"
	if tenant != "" {
		p += tenant + "/"
	}
	return p
}

// ParsePath is the reverse of Path; ok is false for what is no object's key.
func ParsePath(path string) (k onpath.Key, ok bool) {
	rest, ok := strings.CutPrefix(path, Root)
	if !ok {
		return k, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return k, false
	}
	kind, ok := onpath.ParseKind(parts[0])
	return onpath.Key{Kind: kind, Tenant: parts[1], Name: parts[2]}, ok
}
