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

// PageRange are the paths of a kind's objects, of one tenant or ("") of all, behind one of
// them: TENANT/NAME, or "" for none.
func PageRange(kind onpath.Kind, tenant, after string) (from, end string) {
	from = KindPath(kind, tenant)
	end = from[:len(from)-1] + "0" // which follows "/"
	if after != "" {
		from = max(from, KindPath(kind, "")+after+"\x00")
	}
	return from, max(from, end)
}

// ListSize is how many objects a page has at most.
func ListSize(limit int) int { return min(max(limit, 1), onpath.MaxList) }

// NextPage is behind what the next page begins.
func NextPage(list []onpath.Object, more bool) string {
	if !more || len(list) == 0 {
		return ""
	}
	m := list[len(list)-1].Meta()
	return m.Tenant + "/" + m.Name
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
