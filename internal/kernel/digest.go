package kernel

import "math"

// Digest hashes values together with where they stand: op and layer name the
// tensor, row the position of the row (any key that depends on no batch and no
// shard), col0 is the global column of x[0], below 2^32. Digests of parts add
// (mod 2^64) to the digest of the whole, however it was cut. A zero value
// counts like any other, and -0 is not +0.
func Digest(op, layer, row uint64, col0 int, x []float32) uint64 {
	key := mix(mix(mix(op+1)+layer) + row)
	var sum uint64
	col := uint64(col0) << 32
	for _, v := range x {
		sum += mix(key ^ (col | uint64(math.Float32bits(v))))
		col += 1 << 32
	}
	return sum
}

// mix is a bijection of 64 bits in which each bit of z changes each bit of the
// result in half of the cases (Steele, Lea and Flood's SplitMix, variant 13).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
