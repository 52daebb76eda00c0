package control

import (
	"strings"

	"github.com/onpath/onpath"
)

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
