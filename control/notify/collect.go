package notify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

const (
	lookEvery  = time.Second // for nodes that have come
	retryAfter = time.Second
	mostAtOnce = 1000 // notifications stored by one sync
)

// Run fetches from all nodes that are connected, until ctx ends.
func (k *Keeper) Run(ctx context.Context, hub Hub) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	busy := map[string]bool{}
	for ctx.Err() == nil {
		for _, node := range hub.Connected() {
			mu.Lock()
			begin := !busy[node]
			busy[node] = true
			mu.Unlock()
			if !begin {
				continue
			}
			wg.Go(func() {
				err := k.fetch(ctx, hub, node)
				if err != nil && ctx.Err() == nil {
					k.log.Debug("notifications are fetched again in a while", "node", node, "err", err)
					pause(ctx, retryAfter)
				}
				mu.Lock()
				delete(busy, node)
				mu.Unlock()
			})
		}
		pause(ctx, lookEvery)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// fetch stores what a node sends, and tells it what is stored.
func (k *Keeper) fetch(ctx context.Context, hub Hub, node string) error {
	stream, err := hub.Call(ctx, node, onpath.OpNotifications, nil)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer func() { stop(); stream.Close() }()
	r := bufio.NewReaderSize(stream, 1<<18)
	since, err := readSince(r)
	if err != nil {
		return err
	}
	for {
		batch, err := readBatch(r)
		if len(batch) > 0 {
			if err := k.Store(node, since, batch); err != nil {
				k.log.Error("notifications are not stored; their node keeps them", "node", node, "err", err)
				return err
			}
			if _, err := fmt.Fprintln(stream, batch[len(batch)-1].Number); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readSince reads the first line: since when the node counts.
func readSince(r *bufio.Reader) (since string, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return since, json.Unmarshal(line, &since)
}

// readBatch waits for one notification, and takes with it those that have come already.
func readBatch(r *bufio.Reader) (batch []onpath.NumberedNotification, err error) {
	for len(batch) < mostAtOnce && (len(batch) == 0 || r.Buffered() > 0) {
		line, err := r.ReadSlice('\n') // none is longer than the buffer
		if err != nil {
			return batch, err
		}
		var n onpath.NumberedNotification
		if err := json.Unmarshal(line, &n); err != nil {
			return batch, err
		}
		batch = append(batch, n)
	}
	return batch, nil
}
