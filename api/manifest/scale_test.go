package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkParseLong reads as many prefixes as an object may have.
func BenchmarkParseLong(b *testing.B) {
	var y strings.Builder
	y.WriteString("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: many}\nspec:\n  addresses:\n")
	for i := range 10000 {
		fmt.Fprintf(&y, "  - 20.%d.%d.0/24\n", i>>8, i&255)
	}
	data := []byte(y.String())
	for b.Loop() {
		if _, err := Parse(data, "many.yaml", "."); err != nil {
			b.Fatal(err)
		}
	}
}
