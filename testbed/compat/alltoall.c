// Each process sends each other its own part, in lists of 4 bytes to 256 KiB, and compares what it gets.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    int rank, ranks, wrong = 0, sum = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int part = 1; part <= 65536; part *= 16) {
        int *out = malloc(sizeof(int) * part * ranks), *in = calloc(part * ranks, sizeof(int));
        for (int i = 0; i < part * ranks; i++)
            out[i] = rank * 1000003 + i;
        for (int round = 0; round < 20; round++)
            MPI_Alltoall(out, part, MPI_INT, in, part, MPI_INT, MPI_COMM_WORLD);
        for (int peer = 0; peer < ranks; peer++)
            for (int i = 0; i < part; i++)
                wrong += in[peer * part + i] != peer * 1000003 + rank * part + i;
        free(out);
        free(in);
    }
    MPI_Allreduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank)
        printf("alltoall of %d processes, %d integers wrong\n", ranks, sum);
    MPI_Finalize();
    return sum != 0;
}
