package join

import (
	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// RevokeDeleted keeps deleted nodes from coming back by themselves, and users and notifications of
// a deleted tenant from being those of the next one with its name.
func (s *Join) RevokeDeleted(writes []onpath.Change) {
	for _, c := range writes {
		switch {
		case c.Object != nil:
		case c.Key.Kind == onpath.KindNode:
			s.RevokeNode(c.Key.Name)
		case c.Key.Kind == onpath.KindTenant:
			s.revokeTenant(c.Key.Name)
		}
	}
}

func (s *Join) revokeTenant(name string) {
	if s.d.Notifications != nil {
		if err := s.d.Notifications.Forget(name); err != nil {
			s.d.Log.Error("the notifications of a deleted tenant could not be deleted", "tenant", name, "error", err)
		}
	}
	if s.d.Authority == nil {
		return
	}
	gone, err := s.d.Authority.RevokeTenant(name)
	if err != nil {
		s.d.Log.Error("the users of a deleted tenant could not be revoked", "tenant", name, "error", err)
	}
	for _, uri := range gone {
		s.router.EndRequests(uri)
	}
}

// RevokeNode keeps a deleted node from coming back by itself.
func (s *Join) RevokeNode(name string) {
	if s.d.Authority != nil {
		err := s.d.Authority.Revoke(auth.Identity{Role: auth.RoleNode, Name: name}.URI())
		if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
			s.d.Log.Error("the certificate of a deleted node could not be revoked", "node", name, "error", err)
		}
	}
	s.d.Hub.Disconnect(name, "the node was deleted")
}
