package onpath

import (
	"net/netip"
	"slices"
	"strings"
)

// BadRegistry says why an image's registry is not one that a tenant's functions may have
// images from; "": it is. Nodes ask registries: an address instead of a domain may be
// anything in the operator's networks, such as a cloud's metadata.
func BadRegistry(image string, t *Tenant) string {
	host, _, _ := strings.Cut(image, "/")
	name := strings.TrimSuffix(host, ".")
	if h, port, ok := strings.Cut(host, ":"); ok && port != "" {
		name = h
	}
	_, err := netip.ParseAddr(name)
	numeric := strings.Trim(name, "0123456789.x") == "" // 127.1, 0x7f000001
	if err == nil || numeric || !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") ||
		strings.HasSuffix(name, ".local") || strings.HasSuffix(name, ".internal") {
		return "its registry is not named by a public domain"
	}
	if t == nil || len(t.Spec.Registries) == 0 {
		return ""
	}
	allowed := func(r string) bool { return image == r || strings.HasPrefix(image, strings.TrimSuffix(r, "/")+"/") }
	if !slices.ContainsFunc(t.Spec.Registries, allowed) {
		return "the registry is not one of those of the tenant"
	}
	return ""
}
