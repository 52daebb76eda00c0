package onpath

// ExitCloser is what a Datapath can do besides, if it can: close an instance's
// vports at the moment its program ends, before anybody could be told of it.
type ExitCloser interface {
	// CloseAtExit closes up to two vports of this node when the process, by its
	// number here, has ended with all its threads; for the data path it is then as
	// if the next Apply had closed them, and every Apply leaves them closed. The
	// caller calls the returned function once it knows that the process has ended,
	// or that it shall be watched no more. A later Apply, also one of an equal
	// configuration, opens what it says is open.
	CloseAtExit(pid int, vports []VportID) (forget func(), err error)
}
