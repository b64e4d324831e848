// Package collective gives a group of ranks the verbs of HCCL: AllReduce,
// ReduceScatter, AllGather, Broadcast, Gather, Barrier, and the fused
// MatmulReduceScatter, over any [Transport].
//
// # What holds
//
// The order of addition is part of the interface. A sum over ranks is taken in
// float32 in one fixed tree, ranks in order, the left subtree the largest power
// of two below the number of ranks, and rounded once to the output type. It
// depends on no chunking, schedule, transport or arrival order.
//
// In every operation every rank exchanges a descriptor with every peer and
// checks it before it uses any data of that operation. No rank whose result
// depends on a rank that calls something else returns success, and none hangs:
// both values are printed and the Comm is spent.
//
// A Comm is spent by its first error. The cause is flooded to everyone on the
// lane, evidence is gathered for a grace, and one pure function, [Verdict],
// picks the culprits, so all survivors name the same. Nothing is repaired within
// an epoch.
//
// # Frames
//
// A frame is a head of [HeadBytes] and a body. Numbers are little endian.
//
//	offset  type    field
//	0       uint32  magic, "OCT1"
//	4       uint8   kind: 1 descriptor (no body), 2 data
//	5       uint8   flags: bit 0, the checksum covers the body too
//	6       uint8   from, rank of the sender
//	7       uint8   to, rank of the receiver
//	8       uint64  run, hash of the run id
//	16      uint32  epoch
//	20      uint32  comm
//	24      uint64  sequence of the operation, the first is 1
//	32      uint64  descriptor: elements, or rows<<32|columns of a fused product;
//	                data: number of the frame on its link in the operation, from 0
//	40      uint64  plan, the caller's plan hash
//	48      uint8   verb
//	49      uint8   src type
//	50      uint8   dst type
//	51      uint8   reduction
//	52      uint8   root
//	53      uint8   mode of a fused operation
//	54      uint8   purpose
//	55      uint8   zero
//	56      uint32  bytes of body, at most [BodyBytesMax]
//	60      uint32  CRC32C of the body if flagged, continued over head[0:60]
//
// The receiver knows every field beforehand but the descriptor's, so a data
// frame is believed only when its head is the one that was due.
//
// On each link an operation is one descriptor frame and then its data frames,
// handed to the transport in one batch, so a small operation is one write.
package collective
