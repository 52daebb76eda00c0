package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// The pair's addresses at the access and core networks, by gateway.
var gatewaysAt = map[string]struct{ access, core string }{
	"gw1": {"10.1.0.1", "10.9.0.1"},
	"gw2": {"10.1.0.3", "10.9.0.3"},
}

// gatewayKilled kills one gateway of a pair at which requests come in; answers
// come in at the other one. The routes are moved at once: their change is part of the
// blackout, the time in which a routing protocol would notice the death is not.
func (r *Run) gatewayKilled(ctx context.Context) error {
	return r.failing(ctx, r.newGatewaysTestbed, func(s *testbed) error {
		for round := range r.Rounds() {
			r.say("round %d of %d, %s", round+1, r.Rounds(), faultGateway)
			if err := s.via(ctx, "gw1", "gw2"); err != nil {
				return err
			}
			if err := r.fault(ctx, s, s.gatewayFault(pick(r, time.Second, 500*time.Millisecond)), round); err != nil {
				return fmt.Errorf("%s: %w", faultGateway, err)
			}
		}
		return nil
	})
}

// gatewayFault has the gateway back after long.
func (s *testbed) gatewayFault(long time.Duration) fault {
	return fault{faultGateway,
		func(ctx context.Context) error {
			_, err := s.Lab.KillHost("gw1", long)
			return errors.Join(err, s.via(ctx, "gw2", "gw2"))
		},
		func(ctx context.Context) error {
			_ = s.Kill("gw1", syscall.SIGKILL) // it is dead already; its process is waited for
			return s.StartNode(ctx, "gw1")
		},
	}
}

// via has the client's packets and the origin's answers go by way of a gateway each.
func (s *testbed) via(ctx context.Context, requests, answers string) error {
	for host, via := range map[string]string{"client": gatewaysAt[requests].access, "origin": gatewaysAt[answers].core} {
		if out, err := s.Exec(ctx, host, "ip", "route", "replace", "default", "via", via); err != nil {
			return fmt.Errorf("route of %s by way of %s: %w: %s", host, via, err, out)
		}
	}
	return nil
}
