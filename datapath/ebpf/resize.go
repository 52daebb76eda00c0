package ebpf

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// onlyResized tells whether a table of flows or translations differs from the wanted one in
// its size alone.
func onlyResized(name string, want *ebpf.MapSpec, m *ebpf.Map) bool {
	if name != flowsMap && name != natsMap {
		return false
	}
	same := want.Copy()
	same.MaxEntries = m.MaxEntries()
	return want.MaxEntries != m.MaxEntries() && sameLayout(same, m)
}

// copyEntries copies what resized tables hold into the new ones, but for what is there, and
// gives the number of entries that have no capacity left in a smaller one. Programs go on
// with the old tables meanwhile: so it is done before the first device gets its new program,
// and once more after the last, for the flows that began in between.
func (s *succession) copyEntries(ctx context.Context, to map[string]*ebpf.Map) (left int, err error) {
	for name, old := range s.resized {
		n := 0
		switch name {
		case flowsMap:
			n, err = copyNew[flowValue](ctx, to[name], old)
		case natsMap:
			n, err = copyNew[natValue](ctx, to[name], old)
		}
		if err != nil {
			return left, fmt.Errorf("copy the entries of map %s into one of another size: %w", name, err)
		}
		left += n
	}
	return left, nil
}

func copyNew[V any](ctx context.Context, to, from *ebpf.Map) (left int, err error) {
	read := eachEntry(ctx, from, func(k *flowKey, v *V) bool {
		e := to.Update(k, v, ebpf.UpdateNoExist)
		switch {
		case errors.Is(e, unix.E2BIG):
			left++
		case e != nil && !errors.Is(e, ebpf.ErrKeyExist):
			err = e
		}
		return err == nil
	})
	return left, errors.Join(read, err)
}
