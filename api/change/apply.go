package change

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// requestOf is the store's id of a request: that of one identity says nothing about
// another's. "" stays "".
func requestOf(who auth.Identity, request string) string {
	if request == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(who.URI() + "\x00" + request))
	return hex.EncodeToString(sum[:])
}

// maxObjects is how many objects one request may name, those that are as they
// should be included: each is looked up while nobody else writes.
const maxObjects = 10 * onpath.MaxWrite

type applyInput struct {
	Body    wire.Apply
	RawBody []byte
}

type applyOutput struct{ Body wire.Applied }

func (s *Changes) registerApply(rt *router.Router) {
	op := router.Operation(http.MethodPost, "/v1/apply", "apply", "Make objects as they are given, all or nothing")
	op.MaxBodyBytes = wire.MaxApplyBody
	op.SkipValidateBody = true // objects are read strictly, and checked by Validate
	op.BodyReadTimeout = -1    // the server's own limit holds
	router.Register(rt, op, func(ctx context.Context, in *applyInput) (*applyOutput, error) {
		a, err := decodeApply(in.RawBody)
		if err != nil {
			return nil, err
		}
		out, err := s.apply(ctx, a)
		if err != nil {
			return nil, err
		}
		return &applyOutput{Body: *out}, nil
	})
}

// decodeApply reads a request strictly: "dry_run" for "dryRun" must not apply.
func decodeApply(body []byte) (a wire.Apply, err error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		e := router.BadJSON("the request", err)
		e.Remedy = "see /openapi.json"
		return a, e
	}
	return a, nil
}

func (s *Changes) apply(ctx context.Context, a wire.Apply) (*wire.Applied, error) {
	if n := len(a.Objects) + len(a.Delete); n > maxObjects {
		e := onpath.Errorf(onpath.CodeInvalid, "%d objects are in one request; at most %d can be", n, maxObjects)
		e.Remedy = "apply them in parts, those that others refer to first"
		return nil, e
	}
	c := changeSet{dryRun: a.DryRun, verify: !a.NoVerify, force: a.Force}
	var errs onpath.Errors
	for _, raw := range a.Objects {
		o, err := router.DecodeObject(raw)
		if err != nil {
			errs = append(errs, router.ErrorsOf(err)...)
			continue
		}
		c.puts = append(c.puts, o)
	}
	for _, r := range a.Delete {
		kind, ok := onpath.ParseKind(string(r.Kind))
		if !ok {
			errs = append(errs, onpath.Errorf(onpath.CodeInvalid, "there is no kind %q", r.Kind))
			continue
		}
		r.Kind = kind
		c.deletes = append(c.deletes, r.Key())
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	if a.Confirm != 0 {
		if err := wire.ConfirmRange(time.Duration(a.Confirm)); err != nil {
			return nil, err
		}
	}
	if len(a.Request) > onpath.MaxRequestID {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the request's id has %d characters; at most %d are possible",
			len(a.Request), onpath.MaxRequestID)
	}
	if c.request = requestOf(rights.WhoIs(ctx), a.Request); c.request != "" && !a.DryRun {
		if done, err := s.writer.repeated(ctx, c.request); done != nil || err != nil {
			return done, err
		}
	}
	c.confirm = time.Duration(a.Confirm)
	var notes []string
	c.notes = &notes
	all, pending, err := s.change(ctx, c)
	if err != nil {
		return nil, err
	}
	out, err := s.applied(ctx, a, all, pending)
	if err == nil && !a.DryRun {
		out.Notes = notes
	}
	return out, err
}

// tenantOf is the tenant whose users may confirm what who applied; "": none.
func tenantOf(who auth.Identity) string {
	if who.Role == auth.RoleUser {
		return who.Tenant
	}
	return ""
}

// applied completes the answer to an apply.
func (s *Changes) applied(ctx context.Context, a wire.Apply, all []changed, pending *wire.Pending) (*wire.Applied, error) {
	out := &wire.Applied{Changes: make([]wire.ObjectChange, 0, len(all)), Confirm: pending}
	for _, c := range all {
		out.Changes = append(out.Changes, c.result)
		if k := c.change.Key; k.Kind == onpath.KindNode && c.result.Action == wire.Deleted && !a.DryRun {
			s.d.Departures.RevokeNode(k.Name)
		}
	}
	if !a.DryRun {
		return out, nil
	}
	var err error
	out.Preview, err = s.d.Planner.Preview(ctx, toWrite(all))
	return out, err
}
