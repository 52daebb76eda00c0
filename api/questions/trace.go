package questions

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

type traceInput struct {
	Src      string `query:"src" required:"true" doc:"source address"`
	Dst      string `query:"dst" required:"true" doc:"destination address"`
	Protocol int    `query:"protocol" required:"true" doc:"IP protocol number"`
	SrcPort  int    `query:"srcPort" doc:"0: any flow"`
	DstPort  int    `query:"dstPort"`
	Gateway  string `query:"gateway" doc:"the node where the packet enters; default all"`
}

func (s *Questions) registerTrace() {
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/trace", "trace",
		"The way of a packet, both directions, from the plan and live flow entries"),
		func(ctx context.Context, in *traceInput) (*struct{ Body onpath.Trace }, error) {
			t, err := s.trace(ctx, in)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.Trace }{*t}, nil
		})
}

func (s *Questions) trace(ctx context.Context, in *traceInput) (*onpath.Trace, error) {
	r, ok := onpath.TraceRequest{Gateway: in.Gateway, Tenant: rights.ScopeTenant(ctx, "")}, true
	r.Tuple, ok = tupleOf(in)
	if !ok {
		return nil, noTuple(in)
	}
	t, err := s.d.Planner.Trace(ctx, r)
	redact(ctx, t)
	return t, err
}

func noTuple(in *traceInput) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s to %s, protocol %d, ports %d and %d: this is not a packet's tuple", in.Src, in.Dst,
		in.Protocol, in.SrcPort, in.DstPort)
	e.Remedy = "give two addresses of one family, and ports between 0 and 65535"
	return e
}

func tupleOf(in *traceInput) (t onpath.Tuple, ok bool) {
	q := router.Values{Values: map[string][]string{"src": {in.Src}, "dst": {in.Dst}}}
	src, dst := q.Address("src"), q.Address("dst")
	ok = q.Err == nil && src.IsValid() && dst.IsValid() && src.Is4() == dst.Is4() &&
		in.Protocol >= 0 && in.Protocol <= 255 && in.SrcPort >= 0 && in.SrcPort <= 65535 && in.DstPort >= 0 && in.DstPort <= 65535
	return onpath.Tuple{Protocol: uint8(in.Protocol), Src: src, Dst: dst, SrcPort: uint16(in.SrcPort), DstPort: uint16(in.DstPort)}, ok
}
