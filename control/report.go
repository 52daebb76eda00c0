package control

import (
	"reflect"
	"strings"

	"github.com/onpath/onpath"
)

// equalReports reports whether two reports say the same.
func equalReports(a, b *onpath.NodeReport) bool { return a != nil && reflect.DeepEqual(a, b) }

// parseKey reads what Key.String wrote.
func parseKey(s string) (onpath.Key, bool) {
	kind, rest, ok := strings.Cut(s, " ")
	k, known := onpath.ParseKind(kind)
	if !ok || !known {
		return onpath.Key{}, false
	}
	key := onpath.Key{Kind: k, Name: rest}
	if k.Tenanted() {
		key.Tenant, key.Name, ok = strings.Cut(rest, "/")
	}
	return key, ok && key.Name != ""
}
