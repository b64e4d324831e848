// Package tcp links the ranks of one epoch by a full mesh of TCP connections,
// two a pair: one for data, which a [collective.Transport] drives, and one for
// the lane, so that a heartbeat never waits behind a tensor.
//
// # Forming the mesh
//
// Every rank listens before it knows its peers, on a port that the system picks
// unless told otherwise, and keeps the [Listener] for as long as the process
// lives. In each pair the higher rank dials and the lower rank accepts. The
// dialler says hello, the acceptor answers, and nothing else is read from the
// connection before both are satisfied. Numbers are little endian.
//
// A hello has [helloBytes] bytes:
//
//	offset  type      field
//	0       uint32    magic, "OTCP"
//	4       uint16    version of the protocol
//	6       uint16    bytes of this hello
//	8       [16]byte  run id, see [Hello]
//	24      uint32    epoch
//	28      uint16    size, ranks in the mesh
//	30      uint16    from, rank of the one who speaks
//	32      uint16    to, rank of the one who is meant
//	34      uint8     purpose of the connection: 1 data, 2 lane
//	35      [5]byte   zero
//	40      uint64    instance, random for each call of Mesh
//	48      uint32    CRC32C of the bytes before
//
// An answer is
//
//	0       uint32    magic, "OTCA"
//	4       uint16    version of the protocol
//	6       uint8     code: 1 accepted, 2 not yet, 3 refused
//	7       uint8     bytes of the reason
//	8       [52]byte  hello of the acceptor, to be believed when it accepts
//	60      reason    text
//
// "Not yet" means that the acceptor has not come to that epoch; the dialler
// tries again until its context ends. A refusal is final and says both values
// that differ. Whoever does not send a hello in time, or sends something else,
// is turned away; it holds no place in the mesh and delays nobody.
//
// # The lane
//
// A notice on the lane is its length as uint16, and that many bytes as
// [collective.AppendNotice] writes them.
package tcp
