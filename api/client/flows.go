package client

import (
	"bufio"
	"context"
	"encoding/json"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// FlowsOf says which flow entries are meant; zero fields mean all.
type FlowsOf struct {
	Node     string
	Instance string // tenant/name
	Path     onpath.PathID
	Tuple    *onpath.Tuple
}

// Flows calls yield for each flow entry until it returns false.
func (c *Client) Flows(ctx context.Context, of FlowsOf, yield func(wire.Flow) bool) error {
	q := tuple(of.Tuple)
	set(q, "node", of.Node)
	set(q, "instance", of.Instance)
	setInt(q, "path", int(of.Path))
	s, err := c.open(ctx, "/v1/flows", q)
	if err != nil {
		return err
	}
	defer s.Close()
	d := json.NewDecoder(bufio.NewReader(s))
	for {
		var f wire.Flow
		if err := d.Decode(&f); err != nil {
			return s.ended(err)
		}
		if !yield(f) {
			return nil
		}
	}
}
