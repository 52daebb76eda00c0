package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api/manifest"
)

// loadFiles reads what -f names.
func loadFiles(c *cobra.Command, files []string) ([]*manifest.Document, error) {
	return unlessEnded(c.Context(), func() ([]*manifest.Document, error) { return manifest.Load(files, c.InOrStdin()) })
}

// unlessEnded is what read gives, unless ctx ends before: whoever would write into
// a terminal, a pipe or a fifo may never do so, and nothing breaks off such a read.
// It is abandoned; the program ends soon.
func unlessEnded[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
