package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

func path(k onpath.Key) string {
	p := "/v1/" + k.Kind.Plural() + "/"
	if k.Kind.Tenanted() {
		tenant := k.Tenant
		if tenant == "" {
			tenant = onpath.DefaultTenant
		}
		p += url.PathEscape(tenant) + "/"
	}
	return p + url.PathEscape(k.Name)
}

// Get reads one object.
func (c *Client) Get(ctx context.Context, k onpath.Key) (onpath.Object, error) {
	var raw json.RawMessage
	if err := c.do(ctx, http.MethodGet, path(k), nil, nil, &raw); err != nil {
		return nil, err
	}
	return onpath.Decode(raw)
}

// List reads all objects of a kind, of one tenant or ("") of all that the caller
// may see, and the revision from which Watch continues.
func (c *Client) List(ctx context.Context, kind onpath.Kind, tenant string) ([]onpath.Object, int64, error) {
	q := url.Values{}
	if tenant != "" {
		q.Set("tenant", tenant)
	}
	var raw wire.List[json.RawMessage]
	if err := c.do(ctx, http.MethodGet, "/v1/"+kind.Plural(), q, nil, &raw); err != nil {
		return nil, 0, err
	}
	list := make([]onpath.Object, len(raw.Items))
	for i, item := range raw.Items {
		o, err := onpath.Decode(item)
		if err != nil {
			return nil, 0, err
		}
		list[i] = o
	}
	return list, raw.Revision, nil
}

// Put writes one object. If its metadata.version is not 0, what is stored must
// have that version. It returns the object as stored.
func (c *Client) Put(ctx context.Context, o onpath.Object) (onpath.Object, error) {
	var raw json.RawMessage
	if err := c.do(ctx, http.MethodPut, path(onpath.KeyOf(o)), nil, o, &raw); err != nil {
		return nil, err
	}
	return onpath.Decode(raw)
}

// Delete deletes one object, whatever its version. Force is for a node that is
// gone for good (wire.Apply).
func (c *Client) Delete(ctx context.Context, k onpath.Key, force bool) error {
	var q url.Values
	if force {
		q = url.Values{"force": {"true"}}
	}
	return c.do(ctx, http.MethodDelete, path(k), q, nil, nil)
}

// History is the last versions of an object, the oldest first; the last is in force.
func (c *Client) History(ctx context.Context, k onpath.Key) ([]wire.ObjectVersion, error) {
	var out []wire.ObjectVersion
	return out, c.do(ctx, http.MethodGet, path(k)+"/history", nil, nil, &out)
}

// ApplyOptions say how to apply.
type ApplyOptions struct {
	// Delete these too, all or nothing with the rest; what is not there is no
	// error.
	Delete []onpath.Key
	Force  bool
	DryRun bool
	// Confirm undoes everything after this time unless Confirm is called.
	Confirm time.Duration
	// NoVerify leaves out the proof of what would follow.
	NoVerify bool
	// Request is an id of this apply and no other one; default a random one.
	Request string
}

// again is how long an apply is asked for again whose answer was lost.
const again = 10 * time.Second

// Apply makes objects as they are given, all or nothing. If the connection breaks
// before the answer, it asks again, for ten seconds: the server does not do it twice.
func (c *Client) Apply(ctx context.Context, objects []onpath.Object, o ApplyOptions) (*wire.Applied, error) {
	if o.Confirm < 0 { // a Duration of the API cannot be negative, and would be refused as no duration at all
		return nil, wire.ConfirmRange(o.Confirm)
	}
	a := wire.Apply{DryRun: o.DryRun, Force: o.Force, Confirm: onpath.Duration(o.Confirm), NoVerify: o.NoVerify,
		Request: cmp.Or(o.Request, rand.Text())}
	for _, object := range objects {
		data, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		a.Objects = append(a.Objects, data)
	}
	for _, k := range o.Delete {
		a.Delete = append(a.Delete, wire.RefOf(k))
	}
	var out wire.Applied
	err := c.do(ctx, http.MethodPost, "/v1/apply", nil, a, &out)
	if lost := (broken{}); !errors.As(err, &lost) {
		return &out, err
	}
	for end := time.Now().Add(again); onpath.Passing(err) && time.Now().Before(end) && ctx.Err() == nil; {
		select {
		case <-time.After(500 * time.Millisecond):
			err = c.do(ctx, http.MethodPost, "/v1/apply", nil, a, &out)
		case <-ctx.Done():
		}
	}
	return &out, err
}

// Confirm keeps an apply that waits for it.
func (c *Client) Confirm(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/confirm/"+url.PathEscape(id), nil, nil, nil)
}

// Unconfirmed are the applies that wait for their confirmation, the one that is
// undone first before others: all of an operator, those of his tenant of a user.
func (c *Client) Unconfirmed(ctx context.Context) ([]wire.Unconfirmed, error) {
	var out []wire.Unconfirmed
	return out, c.do(ctx, http.MethodGet, "/v1/confirm", nil, nil, &out)
}

// Undo undoes an apply that waits for its confirmation, at once, and says what of it.
func (c *Client) Undo(ctx context.Context, id string) (done wire.Undone, err error) {
	return done, c.do(ctx, http.MethodDelete, "/v1/confirm/"+url.PathEscape(id), nil, nil, &done)
}
