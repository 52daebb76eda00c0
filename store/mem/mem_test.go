package mem_test

import (
	"context"
	"testing"

	"github.com/onpath/onpath/store/mem"
	"github.com/onpath/onpath/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		s := mem.New(mem.Options{Keep: 200})
		t.Cleanup(func() { _ = s.Close() })
		return storetest.Harness{
			Store:   s,
			Compact: func(_ context.Context, revision int64) error { s.Compact(revision); return nil },
			Slow:    200,
		}
	})
}
